"""Commands for organisers, and for the operator of an authority.

Read: members (`minga admit`, `minga ban`, `minga members`), amend (`minga amend`: settings, pause, resume, stop),
authority (`minga authority`).

Called by app; the work is in training/organiser and authority.
"""
