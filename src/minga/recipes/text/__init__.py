"""Text as training data: where it comes from, how it is cut, and in which order a peer reads it.

    sources ─▶ corpus (held-out part, files of the run) ─▶ sentences ─▶ tokenizer ─▶ sentence_pairs
                                                             document_stream: each peer's own order
                                                             public_samples: by number, for secure runs

Read: settings (which text, which tokenizer), sources (the Bible, files, the Hugging Face hub), corpus (the text of a
run as its peers get it), sentences (cutting documents), tokenizer (trained once, shipped with the run),
sentence_pairs (instances of two segments), document_stream (endless and reproducible), public_samples (numbered
samples).

Called by recipes/albert and running. It knows no model.
"""
