"""From rates to a division of the vector: who reduces which share, by which way, and how long that takes.

    rates ─▶ CleanRates ─▶ planner ┬─▶ flat ─────────────────────────────────┐
                                   └─▶ two_level (slow paths, many members) ─┴─▶ loads, share_lp ─▶ division

Read: division (what is asked and answered, in numbers, and rates that can be computed with), planner (entry), flat
(every member to each root; how long any round takes, and which link it waits for; plans without a planner, to compare
with), two_level (one mean of each site crosses; sites are peers near to each other, or dealt by count), loads (what
each link carries), share_lp (best shares of given ways).

Called by planning, and by the room planner. Pure arithmetic: no peers, no network, no clock.
"""
