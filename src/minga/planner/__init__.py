"""What a run will reach and what to choose for it, worked out before it exists by the planner that its peers will use.

    peer_text, devices, device_memory ┐
    model_facts ──────────────────────┴─▶ planned_run ─▶ forecast ─▶ comparison (ways) ─▶ advice, auto_choice
    explanation

Read: peer_text (peers in one line), devices (how fast they compute), model_facts (what
travels, how much work a sample is), device_memory (which micro-batch fits), planned_run (what a run fixes, and peers as
plans take them), forecast (entry: when a step is full, what it takes, the memory of a peer), explanation (what a plan
means for each peer, in sentences and as values), ways (strategies and codecs that are compared, and how far their
losses are behind), comparison (by their forecasts and gaps, with the target batch that is advised), advice (what to
tell an organiser, in words), auto_choice (strategy = "auto").

Called by cli, dashboard and simulation. The division of a vector itself is in averaging/solver. Nothing is simulated.
"""
