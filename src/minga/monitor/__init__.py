"""The history of a run, and pictures of it.

    training/status ─▶ watcher ─▶ history (JSON lines) ─▶ plot
    other peers' histories ─▶ history ─▶ dashboard

Read: watcher (what changed between two looks), history (a file of bounded size, asking other peers for theirs, and what
that adds to one's own), plot (loss against time and samples).

Called by dashboard and cli. It changes nothing in the run.
"""
