"""What lies on this machine of the runs in which it took part, one folder each, and what leads back into them.

    host, join ─▶ RUNS/<first digits of the run id>/ ─┬ run-spec.signed, places-… ─▶ rejoin
                                                      ├ hosted.link ─▶ host_lock
                                                      ├ own-settings.json ─▶ own_settings
                                                      ├ chosen-strategy.json ─▶ chosen_strategy
                                                      ├ own-….safetensors ─▶ own_state
                                                      └ checkpoints/, files/, history ─▶ known_runs

Read: rejoin (how a peer finds its run again), host_lock (a run is hosted once from its folder), own_settings (what an
organiser set for their own machine), chosen_strategy (why strategy = "auto" became what it is), known_runs (what runs
lie here, with step, age and size), own_state (what one peer alone has beside its checkpoint).

Called by join, host, checkpointer and the command line.
"""
