"""What lies on this machine of the runs in which it took part, one folder each, and what leads back into them.

    host, join ─▶ RUNS/<first digits of the run id>/ ─┬ run-spec.signed, places-… ─▶ rejoin
                                                      ├ hosted.link ─▶ host_lock
                                                      ├ own-settings.json ─▶ own_settings
                                                      └ checkpoints/, files/, history ─▶ known_runs

Read: rejoin (how a peer finds its run again), host_lock (a run is hosted once from its folder), own_settings (what an
organiser set for their own machine), known_runs (what runs lie here, with step, age and size).

Called by join, host and the command line.
"""
