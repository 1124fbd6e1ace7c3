"""When a step is full, and for whom: samples are the clock of the run.

    report of each member ─▶ registration ─▶ sample_quota ─▶ limits, told now and in the next plan
    round times ─▶ batch_choice ─▶ batch_size of the next step          plan says rest ─▶ standby

Read: registration (one member of a group in the making), sample_quota (where each one stops, so that together they
have B samples), limits (the leader tells better ones while the step is computed), batch_size (B of each step),
batch_choice (the smallest B that leaves enough time to compute), standby (resting at the request of a plan, as long as
that pays).

Called by matchmaking; sample_quota also by simulation/forecast. What it sends goes through the leader.
"""
