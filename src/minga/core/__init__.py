"""What every other room may use: errors, events, units, files and the run spec; nothing of networks or models.

    run.toml ─▶ files ─▶ spec/ ─▶ RunSpec, the same bytes on every machine
    any room ─▶ events ─▶ displays, logs, fault scripts        a fault ─▶ errors (local or remote, never both)

Read: errors (the tree of all errors that users meet), refusal_code (why a peer refuses a connection or a call), units
(sizes, rates and durations as people write them), urls (which URLs are taken), decoding (what decoding of foreign bytes
may raise), files (written whole or not at all, and bounded TOML), rate_cap (caps by the time of day), png (pictures,
written whole or not at all), printable (text that may be shown), qr (QR codes), wheel (the minga that runs, as a file
to hand out), buffer_pool (memory that is used again), free_memory (what is free goes back to the system), thread_guard
(a check for tests: objects of the event loop are used on its thread only), web_server (uvicorn, with bounds of what
strangers may hold open), aio (tools for tasks on one event loop). Then events (what a peer did, as data) and spec (the
run spec).

Every room above imports this one. It imports no other room.
"""
