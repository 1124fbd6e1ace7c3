"""The bytes of one attempt: the vector cut in equal parts, committed to, kept, and waited for.

    gradient ─▶ equal_parts (one root) ─▶ commitment
    bytes that come ─▶ part_store: kept only if they fit a root or a digest that was stated

Read: equal_parts (which member aggregates which slice, and digests of parts, hashed as they come and gathered in a
Merkle tree), part_store (parts and aggregates at hand), transfer_limits (how long a transfer may take, what is coming
in time, and how long the last ones are waited for).

Called by protocol, accountability, messaging, rechecking and step. It knows digests, and does not judge members.
"""
