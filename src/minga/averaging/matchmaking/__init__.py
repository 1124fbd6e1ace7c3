"""Group formation: from "step t begins" to a signed plan that every member has.

    member: follower ── Join, reports ──▶ leader (of that step) ── limits, plan ──▶ follower
                ▲                            │ may it close? quorum, join_window
    former ─────┴── view: the last round's members, in the order in which they would lead

Read: former (entry: leads or follows), view (whom a peer goes with), follower (stay with a leader until its plan
comes), leader (collect members, close the group), succession (who decides a step, and whether its result is there
already), quorum (how many have to), acceptor (what this peer promised and held), join_window (how long newcomers are
waited for), missing (who of the last round is late, and who silent), suspects (peers not asked to lead for a while).

Called by training/life/member. It knows reports and plans, but no vectors.
"""
