"""The state of a run as one peer sees it, as plain values.

    board ──▶ run_status ──────────┐
    events ─▶ last_problem ────────┴─▶ status_reader ─▶ peer.status(), monitor
    events ─▶ metrics_publisher ─▶ peer.events()
    totals ─▶ metrics_publisher ─▶ board

Read: run_status (what the board says: the run, its peers, losses, rates for the planner, the plan in short, a model
that is cut), status_reader (all of it on demand), last_problem (what went wrong lately), metrics_publisher (this peer's
totals, for the others, and its events one after the other, for a program's own loop).

Called by training/peer and optimizer, monitor, dashboard and cli. It reads the board on the event loop and changes
nothing.
"""
