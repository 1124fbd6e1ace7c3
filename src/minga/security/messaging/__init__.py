"""How statements and bytes get from the members that have them to those that need them.

    author ── spread ──▶ everybody ─▶ voting: who was heard by most ─▶ the set of a phase
    owner ── spread ──▶ aggregator ── spread ──▶ everybody      what does not come: asked of all others

Read: spread (statements, passed on by anybody; parts and aggregates; what one member hands out and waits for), voting
(broadcast on who said what in a phase), past_steps (states and aggregates for those who come later), gradient_samples
(samples of candidates' gradients).

Called by accountability, rechecking and step. It checks signatures and digests; what follows from the words is for
others.
"""
