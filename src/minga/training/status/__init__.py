"""The state of a run as one peer sees it, as plain values.

    board ──▶ run_status (losses) ─┐
    events ─▶ last_problem ────────┼─▶ status_reader ─▶ peer.status(), monitor
    board ──▶ live_rates ─▶ plan_status
    board ──▶ split_status
    events ─▶ event_stream ─▶ peer.events()

Read: run_status (what the board says), status_reader (all of it on demand), losses (the swarm's loss from totals),
live_rates (rates from the board, for the planner), plan_status (the plan in short), split_status (of a cut model),
last_problem (what went wrong lately), metrics_publisher (this peer's totals, for the others), event_stream (events one
after the other, for a program's own loop).

Called by training/peer, monitor and cli. It reads the board on the event loop and changes nothing.
"""
