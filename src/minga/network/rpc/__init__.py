"""Authenticated connections and typed calls between two peers, with bounds on all that strangers could exhaust.

    dial ───────────────▶ handshake ─▶ connections ─▶ node ── open(peer, method) ─▶ framing ─▶ stream
    accept_loop ─────────▶    │                        └── server: finds the handler ◀─ framing ◀─ stream
       misbehaviour: too many offences cut a peer off          keepalive: silence is noticed

Read: node (entry: all connections and methods of one peer), connections (how many, from which peers), accept_loop
(connections that others open), handshake (versions, run, role, credential), carriers (one stream for all small messages
of a connection), server (answers calls), framing (typed messages and bulk bytes), receipt_queue (delivery reports on
their way), keepalive (silence is noticed), misbehaviour (how often each peer broke the protocol), dial_back (can others
dial this peer?), own_address (where do they see it?).

Called by gossip, probing, averaging, security and training. It knows nothing of what the methods do.
"""
