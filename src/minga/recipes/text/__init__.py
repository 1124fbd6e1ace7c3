"""Text as training data: where it comes from, how it is cut, and in which order a peer reads it.

    sources ─▶ corpus (one, or a mixture; held-out part, files of the run) ─▶ tokenizer ─▶ samples (rows, pairs)

Read: settings (which text), sources (made-up sentences, the Bible, files, data sets), corpus (the text of a run as its
peers get it, of one source or of several in given proportions), writing (how languages are written), tokenizer (trained
once or from elsewhere, shipped with the run), samples (documents as tokens; rows of equal length and pairs of segments,
endless or by number).

Called by the recipes for language. It knows no model.
"""
