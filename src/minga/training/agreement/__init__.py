"""Whether peers have the same state, and what keeps it the same where their devices round differently.

    replica ─▶ state/sketch ─▶ comparison ─▶ StateInfo on the board ─▶ state_history: same, diverged, or drifting
                                                                          └─▶ averaging_interval ─▶ parameter_average

Read: state_history (what counts as the same, which side gives way), comparison (one member's measuring and telling),
averaging_interval (how often parameters are averaged), parameter_average (doing it), strategy_switch (another strategy
goes on from a step), replica_step (the end of a round: apply its mean, measure, average).

Called by life and status. It knows replicas and the board, no torch models and no plans but that of the present round.
"""
