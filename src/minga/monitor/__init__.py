"""The history of a run, and pictures of it.

    training/status ─▶ watcher ─▶ history (JSON lines) ─▶ plot
    other peers' histories ─▶ history_exchange ─▶ history_gaps ─▶ dashboard

Read: watcher (what changed between two looks), history (a file of bounded size), plot (loss against time and samples),
history_exchange (asking a peer for its history), history_gaps (what that adds to one's own).

Called by dashboard and cli. It changes nothing in the run.
"""
