"""What a trained language model is good for: tasks that it is fine-tuned on, beside the same model from scratch.

    folder of `minga export` ─▶ evaluate ─▶ fine_tune (a run per seed and rate) ─▶ spans, accuracy ─▶ TaskReport
                                  └─ readers ─▶ examples (split by content) ─▶ encoding

Read: evaluate (entry), examples (labelled sentences and texts, and their split), readers (files and hub data sets),
encoding (labels on sub-tokens), fine_tune (one fine-tuning), spans
(entities out of tags, and their F1).

Called by cli. Papers: DeDLOC (arXiv 2106.10207), section 4.3, for the tasks; fine-tuning is an ordinary one.
"""
