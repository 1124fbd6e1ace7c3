"""ALBERT: masked language model and sentence order, on text.

    text/ ─▶ batching (padding, masks) ─▶ model (loss) ─▶ recipe ─▶ training
                                             └─▶ evaluation (held out), export (for transformers)

Read: recipe (entry), sizes (in which it builds its model), batching (from instances to batches), model (what is
done with transformers' ALBERT), evaluation (the same masks for everyone), export (a directory that transformers
loads).

Called by running/registry. The name ALBERT should appear in no other folder.
"""
