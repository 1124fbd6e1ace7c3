"""Commands of runs for members: for organisers, and for the operator of an authority.

    members_app ─▶ members (admit, ban, members)          authority_app ─▶ authority (the web service)

Read: members_app (options), members (`minga admit`, `minga ban`, `minga members`), authority_app (options),
authority (`minga authority`).

Called by app; the work is in training/organiser and authority/server.
"""
