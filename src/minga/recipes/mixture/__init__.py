"""Text of several sources, mixed in given proportions, without end, and the same for all who know seed and state.

    [[recipe.NAME.data.sources]] ─▶ open_sources ─▶ source_stream (one source, pass after pass) ─▶ filters
                                        │                            └─▶ mixed_stream (proportions, blocks) ─▶ training
                                        └─▶ prepare (organiser): held-out documents, files that travel

Read: source_stream (one source for ever, with a state), filters (which documents count, as data), mixed_stream (which
source comes next, and the order within a block), open_sources (what a source says becomes documents), translations (the
texts of programs in one language, as data that packages carry), prepare (what the organiser makes of a mixture).

Called by the recipes for language. DeDLOC, section 4.3: sahajBERT mixed Wikipedia and OSCAR by 0.23 and 0.77.
"""
