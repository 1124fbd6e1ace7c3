"""Commands of split learning: serve the end of a model, take part with own data.

    serve, join ─▶ recipes/split/taking_part

Read: serve (`minga split serve`), join (`minga split join`).

Called by app.
"""
