"""Text as training data: where it comes from, how it is cut, and in which order a peer reads it.

    sources ─▶ corpus (held-out part, files of the run) ─┬─▶ tokenizer ─▶ tokens ─▶ packing: rows of equal length
                                                        └─▶ sentences ─▶ sentence_pairs ─▶ document_stream (training),
                                                                                           public_samples (by number)

Read: settings (which text), sources (the Bible, files, the Hugging Face hub), corpus (the text of a run as its peers
get it), tokenizer (trained once, shipped with the run), given_tokenizer (one from elsewhere), foreign_tokenizer (of a
stranger), special_tokens (padding, ends, masks), tokens (documents as one memory-mapped array), packing (rows out of
documents). For instances of two segments: sentences (cutting documents), sentence_pairs, document_stream (endless and
reproducible), public_samples (numbered samples).

Called by the recipes for language and by running. It knows no model.
"""
