"""Text as training data: where it comes from, how it is cut, and in which order a peer reads it.

    sources ─▶ mixture ─▶ corpus (held-out part, files of the run) ─┬─▶ tokenizer ─▶ packing: rows of equal length
                                                                    └─▶ writing ─▶ sentence_pairs

Read: settings (which text), sources (made-up sentences, the Bible, files, data sets), mixture (several in given
proportions), translations (texts of programs), corpus (the text of a run as its peers get it), writing (how languages
are written), tokenizer (trained once or from elsewhere, shipped with the run), packing (documents as tokens, rows out
of them), sentence_pairs (instances of two segments, endless or by number).

Called by the recipes for language and by running. It knows no model.
"""
