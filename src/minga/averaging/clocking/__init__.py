"""When a step is full, and for whom: samples are the clock of the run.

    report of each member ─▶ sample_quota ─▶ limits, told now and in the next plan
    round times ─▶ batch_size of the next step          plan says rest ─▶ standby

Read: sample_quota (what the leader knows of each member, and where each one stops, so that together they have B
samples; it tells better limits while the step is computed), batch_size (B of each step: the smallest that leaves enough
time to compute), standby (resting at the request of a plan, as long as that pays).

Called by matchmaking; the room planner uses its arithmetic. What it sends goes through the leader.
"""
