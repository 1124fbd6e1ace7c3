"""The bytes of one attempt: the vector cut in equal parts, committed to, kept, and waited for.

    gradient ─▶ equal_parts ─▶ merkle (one root) ─▶ commitment
    bytes that come ─▶ part_store: kept only if they fit a root or a digest that was stated

Read: equal_parts (which member aggregates which slice), merkle (one digest that stands for many), running_digest
(hashed as the bytes come), part_store (parts and aggregates at hand), transfer_progress (what is coming, and will it be
in time?), transfer_limits (how long a transfer may take), wait_policy (how long the last ones are waited for).

Called by protocol, messaging and step. It knows digests, and does not judge members.
"""
