"""From rates to a division of the vector: who reduces which share, by which way, and how long that takes.

    rates ─▶ clean_rates ─▶ planner ┬─▶ flat ────────────────────────────┐
                                    ├─▶ sites ─▶ two_level (slow paths) ─┼─▶ loads, share_lp, prediction ─▶ division
                                    └─▶ large_groups (many members) ─────┘

Read: division (what is asked and answered, in numbers), planner (entry), clean_rates (rates that can be computed
with), flat (every member to each root), sites (peers near to each other), two_level (one mean of each site
crosses), large_groups (sites by count), loads (what each link carries), share_lp (best shares of given ways),
prediction (how long, and which link). Beside these: baselines (plans without a planner, to compare with),
lower_bound (the best that one level can reach).

Called by planning, and by simulation/forecast. Pure arithmetic: no peers, no network, no clock.
"""
