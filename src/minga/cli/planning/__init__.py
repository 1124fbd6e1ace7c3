"""Commands that plan: what a run does, or would do.

    plan (a live run, a file of peers)
          ├─▶ forecast (--model, --peers) ─▶ forecast_view
          ├─▶ memory (--memory: which micro-batch fits)
          └─▶ measure (--measure: how fast this machine trains)

Read: plan (`minga plan`), forecast and forecast_view, memory, measure, new (`minga new`: what can be trained, a run
spec, a notebook).

Called by app; the arithmetic is in averaging/solver and planner.
"""
