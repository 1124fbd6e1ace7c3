"""Commands about what lies on this machine: its runs, their models, backups and receipts.

    a run's folder ─┬─▶ runs (list, remove)
                    ├─▶ export (a model)
                    ├─▶ sample (what the model makes of prompts)
                    ├─▶ backup ─▶ FILE ─▶ backup (restore)
                    └─▶ receipts ─▶ FILE ─▶ receipts (verify) or evidence

Read: runs (`minga runs`), export (`minga export`), sample (`minga sample`), evaluate (`minga evaluate`: the model on a
task), backup (`minga runs backup` and `restore`), receipts (`minga runs receipts` and `verify`: what members attest of
each other's contribution), evidence (`minga runs verify` of a run: why members were banned).

Called by app.
"""
