"""Ready examples: samples that come with packages, and networks that are cut in two or three.

    scikit-learn ─▶ samples ─▶ subject ◀─ network (bottom, top, head)

Read: samples (pictures and tables), network (dense and convolutional layers, cut by the user), subject (both together,
as a leakage report takes them).

Called by leakage, the recipe `split`, commands and benchmarks. To import it does not import scikit-learn.
"""
