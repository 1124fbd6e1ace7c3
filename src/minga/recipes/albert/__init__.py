"""ALBERT: masked language model and sentence order, on text.

    text/ ─▶ batching (padding, masks) ─▶ model (loss) ─▶ recipe ─▶ training
                                             └─▶ evaluation (held out), export (for transformers)

Read: recipe (entry), settings (its part of the run spec), sizes (in which it builds its model), facts (what planning
asks), batching (from instances to batches), model (what is
done with transformers' ALBERT), evaluation (the same masks for everyone), export (a directory that transformers
loads).

Called by registry. The name ALBERT should appear in no other folder.
"""
