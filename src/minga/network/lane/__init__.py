"""The lane of a connection: one long-lived stream that carries all streams of small messages between two peers.

    LaneStream.write ─▶ outbox (what waits goes in one write) ─▶ stream of the connection ─▶ lane ─▶ LaneStream.read

Read: lane (entry: opens streams, takes in what comes), stream (one stream on it, like any other), outbox (batches),
frames (the bytes on the wire).

Called by rpc/lanes, for connections whose peers both know lanes. It knows nothing of messages or methods.
"""
