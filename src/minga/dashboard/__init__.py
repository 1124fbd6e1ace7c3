"""The dashboard of a run: web pages, an API and metrics, served by a peer that takes part or watches.

    training/status ─▶ watcher ─┬─▶ looks ──────────────────▶ live_run ─▶ model ─▶ server ─▶ browsers
    peer.subscribe ─────────────┴─▶ recorder ──▶ history ──────▲   │
    histories of earlier processes ────────────────────────────┘   └─▶ joining ◀── peer

Read: settings (where it listens, who may see it), dashboard (entry: its thread, what comes in), live_run (the run as it
knows it), model (plain data of bounded size), recorder (what it writes down), server (HTTP), joining (how newcomers
take part: also the page that a host writes, and that of an authority). `static` holds the pages: HTML, CSS and ES
modules, with uPlot for charts, and no build step.

Theory of operation. All data is in one thread with one event loop, beside the peer's loop and the training thread. The
watcher hands over each look at the run, at most one a second; answers are made from it once, however many viewers ask.
The course of the run is a fold over history entries: those of earlier processes, then those of now. So a dashboard that
starts again shows the same curves. What viewers see live is the end of each curve and journal, once a second.

Called by cli. It changes nothing in the run.
"""
