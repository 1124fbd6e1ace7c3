"""What to tell the planner of a run: what will go wrong, what binds, and what would help.

    forecast ─▶ advised_batch (which B) ─▶ comparison (strategies and codecs) ─▶ advice (in words)

Read: advised_batch (the target batch size), comparison (ways to train, by their forecasts), advice (entry).

Called by cli/planning.
"""
