"""Authenticated connections and typed calls between two peers, with bounds on all that strangers could exhaust.

    dial, accept ─▶ handshake ─▶ node ─▶ connections
    node.open(peer, method) ─▶ stream ─▶ multiplexer (small messages) ─▶ carrier ┐
                                  └────▶ bulk ───────────────────────────────────┴─▶ transport

Read: node (entry: dials, accepts, calls, serves), handshake (versions, run, role, credential), stream (typed messages
and bulk bytes), multiplexer (many streams of small messages on one, the carrier), keepalive (silence is noticed),
connections (how many, from which peers, and who broke the protocol), reachability (can others dial this peer, and where
do they see it?), run_clock (the wall clock that all peers agree on).

Called by gossip, probing, averaging, security and training. It knows nothing of what the methods do.
"""
