"""What is recorded beside the history of losses, so that a dashboard that starts again still shows it.

    events of the peer ─▶ round_clock, incidents ─┐
    looks at the run ─────────────────────────────┴─▶ recorder ─▶ history entries ─▶ model

Read: round_clock (how long the phases of a round took), incidents (events that say why a peer missed a round, or is
mistrusted), recorder (writes all of it; also how long newcomers fetched the state, and orders that came into force).
"""
