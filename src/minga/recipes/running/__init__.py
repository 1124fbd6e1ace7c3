"""What is the same for every recipe: from the run spec to a training loop on this machine.

    run spec ─▶ registry ─▶ run (model, optimizer, data, loop) ─▶ minga.Optimizer
                              └─▶ background_evaluation: held-out figures on a thread of its own

Read: registry (from a name to the recipe), run (entry), precision (float32, bfloat16 or float16), micro_batch (how many
samples one backward pass takes), background_evaluation (evaluation beside training), device_speed (how fast this
machine trains), trained_model (what a run has learned, from a checkpoint or from its peers). Then devices (which ones a
peer uses), local_ranks (a process for each of them), rank_process (what runs in the further ones).

Called by cli. It knows recipes by their interface only.
"""
