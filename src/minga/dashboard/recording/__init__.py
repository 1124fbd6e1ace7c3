"""What is recorded beside the history of losses, so that a dashboard that starts again still shows it.

    events of the peer ─▶ incidents ─┐
    looks at the run ────────────────┴─▶ recorder ─▶ history entries ─▶ model

Read: incidents (events that say why a peer missed a round, or is mistrusted), recorder (writes all of it; also how long
the phases of a round took, how long newcomers fetched the state, and orders that came into force).
"""
