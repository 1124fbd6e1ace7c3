"""What is computed on either side of the cut, without a network.

    client: halves (bottom, head) ── question ─▶ … ─▶ applying :server
               └─ parts ──────────◀─ answer ──┘          └─ parts

Read: parts (modules that are trained together, with their optimizer, and the loss), halves (the client's side, as
questions and answers), applying (the seam: what a server does with batches; and the plain way, a step for each).

Used by client, exchange, serving and server.
"""
