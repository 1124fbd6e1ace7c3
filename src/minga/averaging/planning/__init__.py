"""The plan of a round: made by the leader, signed, and checked by every member.

    leader:  registrations ─▶ believed_rates ─▶ solver ─▶ plan_maker ─▶ signed_plan ──▶ member
                                    ├─ contributor_choice: who rests
                                    └─ best_contributor: who gives its parameters, where only one does
    member:  signed_plan: is it well formed, does it ask too much of me? ─▶ accepted or refused

Read: plan_maker (entry for both sides), believed_rates (whose word on rates counts how far), contributor_choice (who
computes and who rests), best_contributor (rounds with one contributor), signed_plan (made from a division, signed,
parsed, and checked, also for fairness).

Called by matchmaking. Solving runs on a worker thread; it knows nothing of how members were collected.
"""
