"""Events: the actions of a peer, as data for people and logs. Nothing in a peer acts on them.

    a part of a peer ─▶ bus: emit(StepApplied(…)) ─▶ Event ─▶ displays, JSON lines, logs, fault scripts
    network, averaging, training, security, split (the kinds) ─▶ catalogue ─▶ docs/events.md

Read: bus (the stream of events of one peer), then the kinds, one class each: network (connections, links, the board),
averaging (groups, plans, rounds), training (steps, state, checkpoints, access), security (Byzantine-tolerant runs),
split (split learning). Then catalogue (all kinds by name, and what their fields mean).

Every room emits events. Displays in cli and monitor, and the logs and scripts of simulation, hear them.
"""
