"""The pictures of a run: where they come from, which are held out, and how they travel.

    packaged ──────────────┐
    streamed (datasets) ───┴─▶ preparation (organiser) ─▶ picture_set, encoded_set: files of the run ─▶ batches
                       └─▶ (each peer) ─▶ stream: blocks in a new order ────────────────────────────▶ batches

Read: settings (what a run spec says), streamed (folders, data sets of the hub, tar
shards), preparation (what the organiser makes of them), picture_set (pictures of one size), encoded_set (files as they
are), stream (training on what does not travel), prefetch (batches made ahead), own_pictures (a peer's
folder in the place of the run's pictures).

Called by the recipe.
"""
