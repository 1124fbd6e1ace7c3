"""What may be combined in a run: one table, asked wherever a run spec is read.

    run spec ─▶ facts (of its strategy, codecs, sketch) ─▶ rules: refusals, cautions ─▶ judgement ─▶ error, warnings
                                                                                  └──▶ overview ─▶ docs/combinations.md

Nothing here knows a name of a strategy, codec or sketch: rules ask for facts, so they hold for those of other packages.
A refusal says what to set instead, and what it says is allowed.

Read: facts (what the rules ask about a run), rule (a rule, and how its message is worded), refusals (R1 to R14: what
cannot be), cautions (W1 and G3: what can be at a price), judgement (a run spec against all of them), overview (the
table of the documentation).

Called by plugins_of_run, and by commands that print warnings. Lower layers guard themselves, in fewer words.
"""
