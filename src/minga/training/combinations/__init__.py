"""What may be combined in a run: one table of rules, asked wherever a run spec is read.

    run spec ─▶ facts (of its strategy, codecs, sketch) ─▶ judgement ─▶ an error, with what to set instead; warnings
                       refusals, cautions: rules about facts ──┘

Rules ask for facts and not for names, so they hold for strategies, codecs and sketches of other packages, too. What a
refusal says to set instead is allowed.

Read: facts (what the rules ask about a run), rule (a rule, and how its message is worded), refusals (R2 to R16: what
cannot be), cautions (W1: what has a price), judgement (a run spec against all of them).

Called by plugins_of_run, by plans, and by commands that print warnings; `docs/combinations.md` is made from it. Lower
layers guard themselves, in fewer words.
"""
