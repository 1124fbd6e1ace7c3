"""Group formation: from "step t begins" to a signed plan that every member has.

    member: follower ── Join, reports ──▶ leader (of that step) ── limits, plan ──▶ follower
                ▲                            │ may it close? succession
    former ─────┴── view: the last round's members, in the order in which they would lead

Read: former (entry: leads or follows, and calls members of the last round that have not joined), view (whom a peer goes
with, and whom it does not ask to lead for a while), follower (stay with a leader until its plan comes), leader (collect
members, wait for newcomers, close the group), succession (who decides a step, how many have to, what this peer promised
and held, and whether the step has a result already).

Called by training/life/member. It knows reports and plans, but no vectors.
"""
