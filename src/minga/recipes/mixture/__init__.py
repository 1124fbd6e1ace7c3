"""Text of several sources, mixed in given proportions, without end, and the same for all who know seed and state.

    settings ─▶ open_sources ─▶ source_stream (one source, epoch after epoch) ─▶ filters ─▶ mixed_stream (blocks)

Read: settings (`[[recipe.NAME.data.sources]]`), source_stream (one source for ever, with a state), filters (which
documents count, as data), mixed_stream (which source comes next, and the order within a block), open_sources (what a
source says becomes documents), translations (the texts of programs in one language, as data that packages carry).

Called by the recipes that train on text. DeDLOC, section 4.3: sahajBERT mixed Wikipedia and OSCAR by 0.23 and 0.77.
"""
