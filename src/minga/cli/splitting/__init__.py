"""Commands of split learning: serve the end of a model, take part with own data.

    split_app ─▶ serve, join ─▶ recipes/split/taking_part

Read: split_app (the commands `minga split …` and their options), serve, join.

Called by app.
"""
