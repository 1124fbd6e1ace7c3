"""One secure step after the other: as a member, or following the members until one is.

    a newcomer ─▶ member ── not on the list ──▶ observer ─▶ the next step
                    └── on the list ──▶ attempt (phase by phase) ── passed ──▶ apply ─▶ the next step
                                           └── a member has to go ──▶ the next attempt

The work of one step is looked into over the next ones. For a member's work in step t:

    step    what is done                             what its COMMIT says              what its close decides
    -----   --------------------------------------   -------------------------------   --------------------------
    t       gradient committed, parts aggregated,    root of the gradient's parts      apply, if all checks pass
            claims checked; the coin of t tossed
            close: aggregators recheck the claims
            about their own part
    t + 1   validators, drawn by the coin of t,      accusations: false claims,        which accusations are
            recheck their targets' work of t         wrong gradient                    pending
            close: jurors look into these
    t + 2                                            judgements: guilty or innocent    most judgements: ban the
                                                                                       accused or the accuser
    t + 3   the members go on without the banned

    A member that was silent in the last phase of t: said in the COMMIT of t + 1, decided in that attempt.
    A candidate's gradient of t: heard until the coin of t + 1 is revealed; in t + 2 named in the COMMIT, rechecked
    by validators that this coin draws, counted at the close; accusations of it are judged in t + 3.

Where the slices of this pipeline lie: found accusations, own judgements and past coins in member, the pending ones
in protocol/protocol_state, passed attempts in attempt, drawn pairs in rechecking/candidates, the first step
that a member may judge in rechecking/recheck. Past work is kept for KEPT_STEPS steps (protocol/behaviour).

Read: member (entry, and how a newcomer gets in), attempt (one attempt, phase by phase: say one thing, hear all,
compare; and the attempts that passed), observer (where the members stand, and following them without a say).

Called by training/life/verified_member and simulation/swarm. It knows no model: gradients come from a training
backend.
"""
