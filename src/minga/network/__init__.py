"""How peers reach and know each other: three transports, typed calls, bandwidth, and the board.

    iroh/ (real, bulk over tcp/) ┐                    ┌─▶ gossip/   what peers say of themselves, everywhere
    virtual/ (simulated)         ┴─▶ interface ─▶ rpc/┼─▶ probing   what a link can carry
                               bandwidth/ ────────────┘

Read: interface (the seam: all that the rest may know of the outside world), authorizer (which peers are admitted),
bounded_dict (a dictionary that strangers cannot make grow), backlog (how much of all peers waits to be read),
meta_bytes (a length without content, for simulations), interrupt (what transports wait for, and what ends that), lan
(runs that are announced in the local network). Then rpc, gossip, bandwidth, probing, and of the transports virtual
first.

Called by averaging, security, training and cli. It knows nothing of vectors, steps or models.
"""
