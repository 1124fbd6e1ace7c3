"""Commands about what lies on this machine: runs, export, backup, restore.

    a run's folder ─┬─▶ runs (list, remove)
                    ├─▶ export (a model)
                    └─▶ backup ─▶ FILE ─▶ backup (restore)

Read: keeping_app (options), runs (`minga runs`), export (`minga export`), backup (`minga backup` and `minga restore`).

Called by app.
"""
