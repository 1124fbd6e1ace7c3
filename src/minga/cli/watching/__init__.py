"""Watching a run in a browser: `minga dashboard`, and `minga host --dashboard`.

    watching_app ─▶ watch (a monitor of its own) ─┐
    host (--dashboard) ───────────────────────────┴─▶ open_dashboard ─▶ minga.dashboard

Read: watching_app (options), watch (`minga dashboard LINK`), open_dashboard (what both share).

Called by app and taking_part.
"""
