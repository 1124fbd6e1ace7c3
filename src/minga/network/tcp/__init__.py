"""Bulk bytes of an iroh connection over TCP, sealed, where two peers can reach each other that way.

    iroh connection ── dial: offers port, certificate, word ──▶ listener of the other side
         └─▶ host ─▶ bulk_lane ─▶ stream ─▶ greeting ─▶ sealed_channel ─▶ socket

Read: bulk_lane (entry: a pool of connections for one peer), host (the iroh connection as the lane sees it), dial (what
is offered, and dialling), listener (admits invited peers), certificate (one for each network), stream (pieces with
lengths), greeting (a connection until both sides have keys), key_exchange (TLS up to there), sealed_channel (the
connection from then on), sealed_records (what is sent there), read_buffer (bytes before they are opened), low_water
(when a reader is woken).

Called by network/iroh only. Keys are proven over iroh; without TCP everything goes over iroh.
"""
