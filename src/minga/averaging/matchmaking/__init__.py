"""Group formation: from "step t begins" to a signed plan that every member has.

    member: follower ── Join, reports ──▶ leader (of that step) ── limits, plan ──▶ follower
                ▲                            │
    former ─────┴── attempt (what this peer sees at the step) ── votes (what it promised, who decides)

Read: former (entry: one attempt at a step after the other; it leads or follows), votes (what a peer brings to a step,
and what follows from that for who decides it: pure functions), attempt (whom a peer sees, suspects and expects at its
step, and whether a group may take that), follower (stay with a leader until its plan comes), leader (collect members,
wait for newcomers, close the group).

Called by training/life/member. It knows reports and plans, but no vectors.
"""
