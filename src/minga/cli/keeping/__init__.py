"""Commands about what lies on this machine: runs, export, sample, backup, restore, receipts.

    a run's folder ─┬─▶ runs (list, remove)
                    ├─▶ export (a model)
                    ├─▶ sample (what the model makes of prompts)
                    ├─▶ backup ─▶ FILE ─▶ backup (restore)
                    └─▶ receipts (export) ─▶ FILE ─▶ receipts (verify)

Read: keeping_app (options), runs (`minga runs`), export (`minga export`), sample (`minga sample`), evaluate (`minga
evaluate`: the model on a task), backup (`minga backup` and `minga restore`), receipts_app and receipts (`minga receipts
show|export|verify`: what members attest of each other's contribution).

Called by app.
"""
