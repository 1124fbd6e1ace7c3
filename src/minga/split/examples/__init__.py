"""Ready examples: samples that come with packages, networks that are cut in two or three, an attack on activations.

    scikit-learn ─▶ samples ─▶ network (bottom, top, head) ─▶ activations ─▶ decoder ─▶ what an attacker sees

Read: samples (pictures and tables), network (dense and convolutional layers, cut by the user), decoder (what can be
rebuilt of activations).

Called by the recipe `split`, its demo and benchmarks. To import it does not import scikit-learn.
"""
