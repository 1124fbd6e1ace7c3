"""The decoder of "Training Transformers Together" (arXiv:2207.03481): text, then image tokens, in one sequence.

    shape ─▶ layers ─▶ reversible ─▶ model ─▶ cache (one token at a time)

Read: shape (widths, lengths, shared weights), layers (attention with its masks and places, feed-forward, token shift),
reversible (gradients without kept activations), model (all of it, embeddings and logits), cache (the same model for
sampling).

Called by recipe, evaluation and sampling of the recipe. It knows neither words nor pictures.
"""
