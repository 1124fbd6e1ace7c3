"""A server of the other part of a model, on a node.

    stream ─▶ service (room, turn) ─▶ batch_server: check ─▶ sessions: admit ─▶ take ─▶ note ─▶ service ─▶ stream

Read: service (streams, turns, what is dropped), batch_server (one request from bytes to bytes, without a network),
sessions (exactly once for each client and number).

Made by serving; simulations make it on their own nodes.
"""
