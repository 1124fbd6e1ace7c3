"""Whether peers have the same state, and what keeps it the same where their devices round differently.

    replica ─▶ state/sketch ─▶ comparison ─▶ StateInfo on the board ─▶ comparison: same, diverged, or drifting
                                                                          └─▶ how often ─▶ between_rounds averages

Read: comparison (one member's measuring and telling, what counts as the same, which side gives way, and how often
parameters are averaged), between_rounds (what happens to a replica besides the step: amendments take effect, parameters
are averaged, another strategy goes on).

Called by life and status. It knows replicas and the board, no torch models and no plans but that of the present round.
"""
