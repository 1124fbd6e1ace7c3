"""Text to image: the decoder of "Training Transformers Together" (arXiv:2207.03481), and what it needs.

    data/ ─▶ tokens/ (pictures to codes) ─▶ prepare ─▶ pairs ─▶ decoder/ ─▶ loss ─▶ recipe ─▶ training
                                                                   └─▶ sampling ─▶ judging, evaluation, export

Read: recipe (entry), settings (its part of the run spec), data (where captions and pictures come from),
tokens (pictures as numbers), captions (words as numbers), prepare and pairs (the files of a run), decoder (the model),
loss, sampling (drawing pictures), judging (what a picture shows), evaluation (figures), export (a folder without a
run).

Called by registry. Its names appear in no other folder.
"""
