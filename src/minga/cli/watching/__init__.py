"""Watching a run in a browser: `minga dashboard`, and `minga host --dashboard`.

    watch (a monitor of its own) ─┬─▶ minga.dashboard
    host (--dashboard) ───────────┘

Read: watch (`minga dashboard LINK`, and what both share).

Called by app and taking_part.
"""
