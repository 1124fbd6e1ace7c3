"""Bulk bytes of an iroh connection over TCP with TLS, where two peers can reach each other that way.

    iroh connection ── dial: offers port, certificate, word ──▶ listener of the other side
         └─▶ host ─▶ bulk_lane ─▶ stream ─▶ sealed_channel (read_buffer, low_water) ─▶ socket

Read: bulk_lane (entry: a pool of connections for one peer), host (the iroh connection as the lane sees it), dial (what
is offered, and dialling), listener (admits invited peers), certificate (one for each network), stream (pieces with
lengths), sealed_channel (one connection under TLS), read_buffer (bytes before they are decrypted), low_water (when a
reader is woken).

Called by network/iroh only. Keys are proven over iroh; without TCP everything goes over iroh.
"""
