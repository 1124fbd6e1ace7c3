"""What lies on this machine of the runs in which it took part, what is kept for good, and when the machine takes part.

    host, join ─▶ RUNS/<first digits of the run id>/ ─┬ run-spec.signed, places-…, hosted.link ─▶ rejoin
                                                      ├ own-settings.json, chosen-strategy.json ─┐
                                                      ├ checkpoints/, files/, history ───────────┴▶ known_runs
                                                      └ archive/ ◀─ archive ─▶ a folder, a bucket, or the hub

Read: rejoin (how a peer finds its run again, and the lock by which a run is hosted once from its folder), known_runs
(what runs lie here, with step, age and size; what an organiser set for their own machine; why strategy = "auto" became
what it is), complete_checkpoints (their names), archive (checkpoints that outlive the organiser's machine),
availability (daily hours, a pause, a traffic budget).

Called by training and the command line. It knows folders and files, and neither peers nor models.
"""
