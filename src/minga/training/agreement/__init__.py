"""Whether peers have the same state, and what keeps it the same where their devices round differently.

    replica ─▶ state/sketch ─▶ comparison ─▶ StateInfo on the board ─▶ comparison: same, diverged, or drifting
                                                                          └─▶ how often ─▶ replica_step averages

Read: comparison (one member's measuring and telling, what counts as the same, which side gives way, and how often
parameters are averaged), replica_step (the end of a round: apply its mean, measure, average parameters, go on by
another strategy).

Called by life and status. It knows replicas and the board, no torch models and no plans but that of the present round.
"""
