"""Training together: the optimizer, steps, state and checkpoints."""
