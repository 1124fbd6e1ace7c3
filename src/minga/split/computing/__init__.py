"""What is computed on either side of the cut, without a network.

    client: halves (bottom, head) ── question ─▶ … ─▶ applying (one_top) :server
               └─ parts ──────────◀─ answer ──┘           └─ parts

Read: loss (of a batch), parts (modules that are trained together, with their optimizer), halves (the client's side, as
questions and answers), applying (the seam: what a server does with batches), one_top (the plain way: a step for each
batch).

Used by client, exchange, serving and server.
"""
