"""Text to image: the decoder of "Training Transformers Together" (arXiv:2207.03481), and what it needs.

    data ─▶ tokens (pictures to codes) ─▶ prepare (pairs, files of the run) ─▶ decoder ─▶ evaluation (loss) ─▶ training
                                                                                 └─▶ sampling ─▶ figures, export

Read: recipe (entry), settings (its part of the run spec), shapes (pictures that captions tell, and what a picture
shows), data (where captions and pictures come from), tokens (pictures as numbers), pairs (captions and codes as a batch
and as a file), prepare (the files of a run), decoder (the model) and reversible (its gradients without kept
activations), sampling (drawing pictures, one token at a time), evaluation (loss and figures), export (a folder without
a run).

Called by registry. Its names appear in no other folder.
"""
