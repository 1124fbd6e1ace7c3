"""What members say, what each of them must know to go on, and the numbers of one attempt.

    statements (said, and kept)            rules (settings, and all else that must be alike: one digest)
    protocol_state of step t: members, coin, pending accusations … ── attempt_record ──▶ that of step t + 1

Read: statements (signed words, by phase, and those heard so far), rules (what may be tuned, and what all must compute
alike), members (who belongs, is on probation, or was banned, and why; and which accusations are pending),
protocol_state (all of this at a step, in one digest), attempt_record (what an attempt is about, and what came of it),
step_math (aggregates, claims and checks of an attempt), behaviour (what a member does of its own accord: the honest
one).

Called by all folders of this room after it. It sends nothing.
"""
