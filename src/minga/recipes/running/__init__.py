"""What is the same for every recipe: from the run spec to a training loop on this machine.

    run spec ─▶ registry ─▶ run (model, optimizer, data, loop) ─▶ minga.Optimizer
                              └─▶ background_evaluation: held-out figures on a thread of its own

Read: registry (from a name to the recipe), run (entry), devices (which ones a peer uses), precision (float32, bfloat16
or float16), micro_batch (how many samples one backward pass takes, and how fast that is), background_evaluation
(evaluation beside training), trained_model (what a run has learned, from a checkpoint or from its peers), local_ranks
(a process for each device).

Called by cli. It knows recipes by their interface only.
"""
