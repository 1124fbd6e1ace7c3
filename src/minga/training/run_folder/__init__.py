"""What lies on this machine of the runs in which it took part, one folder each, and what leads back into them.

    host, join ─▶ RUNS/<first digits of the run id>/ ─┬ run-spec.signed, places-…, hosted.link ─▶ rejoin
                                                      ├ own-….safetensors ─▶ own_state
                                                      ├ own-settings.json, chosen-strategy.json ─┐
                                                      └ checkpoints/, files/, history ───────────┴▶ known_runs

Read: rejoin (how a peer finds its run again, and the lock by which a run is hosted once from its folder), known_runs
(what runs lie here, with step, age and size; what an organiser set for their own machine; why strategy = "auto" became
what it is), own_state (what one peer alone has beside its checkpoint).

Called by join, host, organiser, checkpointer, backup and the command line.
"""
