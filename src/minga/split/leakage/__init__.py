"""What activations tell about the data that they are of, how to make them tell less, and how to see both.

    inputs, activations ─▶ distance_correlation ─▶ no_peek ─▶ the client's loss
                                  ▼                    ▼
                             permutation    division, training ─▶ comparison ─▶ report ─▶ sheet (PNG)
                                            decoder, similarity ────▲

Read: distance_correlation, no_peek (the loss with its weight), gradient_noise (against what gradients tell of labels),
permutation (what is found by chance), settings, division (samples to train on, to choose by and to report), training
(without and with NoPeek), decoder (an attack), similarity (of pictures), comparison (one report, from the start to the
end), report and sheet (figures, text, picture).

Called by clients of split learning and by `minga split leakage`.
"""
