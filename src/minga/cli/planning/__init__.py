"""Commands that plan: what a run does, or would do.

    plan ─┬─▶ plan_view (a live run, a file of peers)
          ├─▶ forecast (--model, --peers) ─▶ forecast_view
          ├─▶ memory (--memory: which micro-batch fits)
          └─▶ measure (--measure: how fast this machine trains)
    recipes ─▶ notebook

Read: plan (`minga plan`), plan_view (how plans look), forecast and forecast_view, memory, measure, recipes (`minga
new`: what can be trained), notebook (`minga new --notebook`).

Called by app; the arithmetic is in averaging/solver and planner.
"""
