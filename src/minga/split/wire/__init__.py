"""What crosses the wire between clients and the server of a cut model.

    tensors ─▶ headers and bytes ═ messages, bodies ═▶ room ─▶ checked bytes ─▶ tensors

Read: messages (requests and replies), tensors (checked headers, encoded bytes), bodies (the bytes on their way, in
pieces), room (memory for what arrives).

Everything else in split uses it. It knows no module and no optimizer.
"""
