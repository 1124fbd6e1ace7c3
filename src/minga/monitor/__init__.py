"""The history of a run, and pictures of it.

    training/status ─▶ watcher ─▶ history (JSON lines) ─▶ plot ─▶ png

Read: watcher (what changed between two looks), history (a file of bounded size), plot (loss against time and samples),
png (pictures).

Called by cli. It changes nothing in the run.
"""
