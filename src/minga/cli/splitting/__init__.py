"""Commands of split learning: serve the end of a model, take part with own data, measure what activations tell.

    split_app ─▶ serve, join, stand_by ─▶ recipes/split/taking_part
             └─▶ leakage ─▶ split/leakage

Read: split_app (the commands `minga split …` and their options), serve, join, stand_by, leakage.

Called by app.
"""
