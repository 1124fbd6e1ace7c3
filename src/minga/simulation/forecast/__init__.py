"""What a swarm will reach, worked out before it exists by the planner that the peers themselves will use.

    peer_text, swarm_file ─▶ volunteers (devices, memory) ┐
    model_facts ──────────────────────────────────────────┴─▶ planned_run ─▶ step_fill ─▶ forecast
                                                                          explanation ─▶ plan_words

Read: peer_text (peers in one line), swarm_file (peers in a file), devices (how fast they compute), model_facts (what
travels, how much work a sample is), memory (what a peer needs), device_memory (which micro-batch fits), volunteers
(peers as plans take them), planned_run (what a run fixes), step_fill (when a step is full), forecast (entry),
explanation (what a plan means for each peer), plan_words (the same in sentences and as values).

Called by advice, dashboard and cli/planning. Nothing is simulated here.
"""
