"""Commands about what lies on this machine: its runs, their models and their receipts.

Read: runs (`minga runs`: list, remove, backup, restore), models (`minga export`, `minga sample`, `minga evaluate`),
receipts (`minga runs receipts` and `verify`).

Called by app.
"""
