"""Commands about what lies on this machine: runs, export, sample, backup, restore.

    a run's folder ─┬─▶ runs (list, remove)
                    ├─▶ export (a model)
                    ├─▶ sample (what the model makes of prompts)
                    └─▶ backup ─▶ FILE ─▶ backup (restore)

Read: keeping_app (options), runs (`minga runs`), export (`minga export`), sample (`minga sample`), evaluate (`minga
evaluate`: the model on a task), backup (`minga backup` and `minga restore`).

Called by app.
"""
