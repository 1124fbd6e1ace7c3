"""What a trained language model is good for: tasks that it is fine-tuned on, beside the same model from scratch.

    folder of `minga export` ─▶ evaluate (a fine-tuning per seed and rate) ─▶ figures ─▶ TaskReport
                                  └─ examples (of files and data sets, split by content)

Read: evaluate (entry; one fine-tuning, labels on sub-tokens, entities and their F1), examples (labelled sentences and
texts).

Called by cli. Papers: DeDLOC (arXiv 2106.10207), section 4.3, for the tasks; fine-tuning is an ordinary one.
"""
