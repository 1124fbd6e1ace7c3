"""Bulk bytes of an iroh connection over TCP, sealed, where two peers can reach each other that way.

    iroh connection ─▶ bulk_lane ── offers port, certificate, word; dials ──▶ listener of the other side
                           └─▶ greeting ─▶ sealed_channel ─▶ sealed_records ─▶ socket

Read: bulk_lane (entry: what is offered, a pool of connections for one peer, and the streams on them), listener (admits
invited peers by their certificates), greeting (a connection until both sides have keys), sealed_channel (the connection
from then on), sealed_records (what is sent there).

Called by network/iroh only. Keys are proven over iroh; without TCP everything goes over iroh.
"""
