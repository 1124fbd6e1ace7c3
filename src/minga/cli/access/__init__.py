"""Commands for organisers, and for the operator of an authority.

    members_app ─▶ members (admit, ban, members)          authority_app ─▶ authority (the web service)
    amend_app ─▶ amend (amend, pause, resume, stop) ─▶ stop (waits for the end)

Read: members_app (options), members (`minga admit`, `minga ban`, `minga members`), amend_app (options), amend (`minga
amend`, `minga pause`, `minga resume`, `minga stop`), stop (waits for the run's end), authority_app (options), authority
(`minga authority`).

Called by app; the work is in training/organiser and authority/server.
"""
