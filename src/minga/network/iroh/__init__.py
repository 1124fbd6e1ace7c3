"""The real network: QUIC over UDP by iroh, with keys as ids, hole punching and relays.

    network (one endpoint) ── dial / accept ──▶ connection (two QUIC lanes) ─▶ stream ─▶ ffi_bytes ─▶ iroh
                              accept_queue ◀──────┘        └── bulk, where possible: network/tcp

Read: settings (of the endpoint), network (entry), connection (why two lanes), stream (two one-way streams),
ffi_bytes (bytes through the foreign bindings without copies in Python), accept_queue (what arrived and waits to be
taken), process_end (whether the other side's process has ended).

Implements network/interface; called by training/join. It passes the suites of minga.testing.
"""
