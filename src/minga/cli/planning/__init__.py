"""Commands that plan: what a run does, or would do.

    plan (live run, file) ─▶ plan_view          forecast (--model, --peers) ─▶ forecast_view
    memory (--model, --memory)          bench_device          recipes

Read: planning_app (options), plan (`minga plan` of a live run or a file), plan_view (how plans look), forecast (`minga
plan --model`), forecast_view (how forecasts look), memory (`minga plan --memory`: which micro-batch fits), bench_device
(`minga bench-device`), recipes (`minga recipes` and `minga new`: what can be trained), notebook (`minga notebook`).

Called by app; the arithmetic is in averaging/solver and planner.
"""
