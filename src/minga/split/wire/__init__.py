"""What crosses the wire between clients and the server of a cut model.

    tensors ─▶ headers and bytes ═ messages, bodies ═▶ checked bytes ─▶ tensors

Read: messages (requests and replies), tensors (checked headers, encoded bytes), bodies (the bytes on their way, in
pieces, and room for what arrives).

Everything else in split uses it. It knows no module and no optimizer.
"""
