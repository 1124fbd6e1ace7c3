"""SwAV: features of pictures, learned without labels by assigning crops of a picture to the same prototypes.

    data/ ─▶ augmentation/ ─▶ batching (crops) ─▶ model (trunk, head, prototypes) ─▶ objective (loss) ─▶ training
                                                     │                               ▲
                                                     ▼                               └ assignment (Sinkhorn, queue)
                                     evaluation (probes), export (for transformers)

Read: recipe (entry), settings (its part of the run spec), sizes (presets), batching (from pictures to crops), model
(a ResNet of transformers with a head and prototypes), assignment (equal shares of the prototypes), objective (the
loss), evaluation (held-out figures), probes (the classifiers behind them), neighbours (pictures that are alike), export
(a folder that transformers loads), judging (tasks for such a folder).

Called by registry.
"""
