"""What each sender claims about its part, and the checks of these claims.

    part, aggregate, coin ─▶ count_sketch (random directions) ─▶ claims (projections and norms)
    claims of all ─▶ checks: V1 true? V2 sum zero? V3 norms in norm_bound? ─▶ findings
                         └─ a doubt: public_check, from the bytes of all senders

Read: claims (what is claimed), count_sketch (the directions), checks (V1, V2, V3), tolerance (how far honest
numbers may be apart), norm_bound (the bound of V3), public_check (all computed again), findings (who did what),
gradient_match (is a recomputed gradient the same?), exact_sum (the same bits on every machine),
rounded_length (the same digits, in one pass), step_bound (how far one step may go).

Called by protocol/step_math and rechecking. Pure arithmetic on arrays; it bans nobody.
"""
