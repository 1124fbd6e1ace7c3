"""Many streams of small messages between two peers over one long-lived stream, the carrier.

    Substream.write ─▶ outbox (what waits goes in one write) ─▶ carrier ─▶ multiplexer ─▶ Substream.read

Read: multiplexer (entry: opens streams, takes in what comes), substream (one stream on it, like any other), outbox
(batches), frames (the bytes on the wire).

Called by rpc/carriers, for connections whose peers both multiplex. It knows nothing of messages or methods.
"""
