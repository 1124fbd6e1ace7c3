"""What each sender claims about its part, and the checks of these claims.

    part, aggregate, coin ─▶ count_sketch (random directions) ─▶ claims (projections and norms)
    claims of all ─▶ checks: V1 true? V2 sum zero? V3 norms in norm_bound? ─▶ liars
                         └─ a doubt: the public check, from the bytes of all senders

Read: claims (what is claimed, and how far honest numbers may be apart), count_sketch (the directions, and lengths with
the same bits on every machine), checks (V1, V2, V3, and the public check), norm_bound (the bound of V3, and
how far one step may go), gradient_match (is a recomputed gradient the same?).

Called by protocol/step_math, step and rechecking. Pure arithmetic on arrays; it bans nobody.
"""
