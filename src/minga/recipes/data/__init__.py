"""Data of every kind, as recipes need it: the same samples, orders and held-out parts on every machine.

    hub (rows) ─▶ hold_out (by content) ─▶ order (endless, each peer's own) ─▶ prefetch ─▶ batches

Read: order (seeds, permutations, passes without end), hold_out (what nobody trains on), hub (data sets of the
Hugging Face hub and files, read on where a line broke off), prefetch (batches made ahead), files (of a run).

Used by all recipes, those of other packages too. It knows neither texts nor pictures, and no model.
"""
