"""What to tell the planner of a run: what will go wrong, what binds, and what would help.

    forecast ─▶ advised_batch (which B) ─▶ ways, gaps ─▶ comparison (which way) ─▶ advice (in words)
                                                             └──▶ auto_choice (what a run begins with)

Read: advised_batch (the target batch size), gaps (how far losses of ways are behind), ways (strategies and codecs that
are compared), comparison (by their forecasts and gaps), advice (entry), auto_choice (strategy = "auto").

Called by cli/planning.
"""
