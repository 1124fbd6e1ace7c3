"""What a trained language model is good for: tasks that it is fine-tuned on, beside the same model from scratch.

    folder of `minga export` ─▶ evaluate ─▶ fine_tune (a run per seed and rate) ─▶ figures ─▶ TaskReport
                                  └─ examples (of files and data sets, split by content)

Read: evaluate (entry; labels on sub-tokens, entities and their F1), examples (labelled sentences and texts), fine_tune
(one fine-tuning).

Called by cli. Papers: DeDLOC (arXiv 2106.10207), section 4.3, for the tasks; fine-tuning is an ordinary one.
"""
