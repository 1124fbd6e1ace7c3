"""Status, history and plots of a run, as one peer sees it.

    board, events ─▶ watcher ┬─▶ status (losses, plan_status, last_problem) ─▶ displays
                             └─▶ history (JSON lines) ─▶ plot ─▶ png

Read: status (what the board says, as plain values), watcher (status on demand, and what changed), losses (the
swarm's loss from totals), live_rates (rates from the board, for the planner), plan_status (the plan in short),
last_problem (what went wrong lately), history (a file of bounded size), plot (loss against time and samples), png
(pictures).

Called by cli. It reads the board on the event loop and changes nothing.
"""
