"""Ready examples: samples that come with packages, and networks that are cut in two or three.

    scikit-learn ─▶ samples ─▶ network (bottom, top, head)

Read: samples (pictures and tables), network (dense and convolutional layers, cut by the user).

Called by the recipe `split` and its demo. To import it does not import scikit-learn.
"""
