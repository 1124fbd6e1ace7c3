"""The real network: QUIC over UDP by iroh, with keys as ids, hole punching and relays.

    network (one endpoint) ── dial / accept ──▶ connection (two QUIC lanes) ─▶ its streams ─▶ ffi_bytes ─▶ iroh
                                                     └── bulk, where possible: network/tcp

Read: network (entry: settings and endpoint), connection (why two lanes, its streams, and whether the process at the
other end lives), ffi_bytes (bytes through the foreign bindings without copies in Python).

Implements network/interface; called by training/join. It passes the suites of minga.testing.
"""
