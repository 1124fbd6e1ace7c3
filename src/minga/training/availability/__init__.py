"""When a volunteer's machine takes part: hours of the day, a budget of traffic, the battery, a word from its owner.

    daily_hours ─────┐
    traffic_budget ──┼─▶ availability.pause() ─▶ a command leaves the run, waits, and comes back
    pause_file ──────┘

Read: availability (all rules together), daily_hours, traffic_budget (bytes in a day, week or month, spread over the
time left), pause_file (`minga join --pause` from another terminal).

Called by cli/taking_part. It knows clocks and files, and nothing of peers. To pause is to leave: other peers lose
nothing, and the peer comes back as one that was away.
"""
