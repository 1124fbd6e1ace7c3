"""This peer's copy of what is trained, as the rounds see it.

    gradients ─▶ flat_vector ─▶ (averaging) ─▶ flat_vector ─▶ rules, clip, optimizer, scheduler: replica.apply
    buffers ─────▲ moved since the last step         several processes: training/ranks repeats it on each rank

Read: interface (the replica seam), replica (for real models), flat_vector (tensors as one vector), gradient_sum (sums
of gradients, in RAM or on the device), buffers (averaged buffers), update_rules (what a recipe says about updates),
trained_record (what trains, which all peers have to have alike), schedule (the learning-rate schedule, and rates that
the program's loop sets), training_point (train and eval of optimizers that average), host_memory (updates in RAM),
accelerator (copies beside computing), draws (random numbers), build_optimizer (from the run spec, and which optimizers
can be driven so).

Used on the training thread only; called by training/optimizer, strategy and life. It knows no peers.
"""
