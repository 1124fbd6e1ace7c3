"""This peer's copy of what is trained, as the rounds see it.

    gradients ─▶ flat_vector ─▶ (averaging) ─▶ flat_vector ─▶ rules, clip, optimizer, scheduler: replica.apply
    buffers ─────▲ moved since the last step         several processes: training/ranks repeats it on each rank

Read: interface (the replica seam), replica (for real models), flat_vector (tensors as one vector), buffers (averaged
buffers), update_rules (what a recipe says about updates), trained_record (what trains, which all peers have to have
alike), schedule (the learning-rate schedule), loop_rates (learning rates that the program's loop sets), training_point
(train and eval of optimizers that average), host_memory (updates in RAM), build_optimizer (from the run spec),
optimizer_check (which optimizers can be driven so).

Used on the training thread only; called by training/optimizer, strategy and life. It knows no peers.
"""
