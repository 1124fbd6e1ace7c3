"""Split learning: a model that is cut between clients that hold data and a server that computes the rest.

    client ─▶ computing (bottom, head) ─▶ exchange ═ wire: split.begin, split.batch ═▶ server ─▶ computing (top)
                   ◀───────────── gradients, activations: encoded, checked ─────────────┘           ◀─ serving

Read: client (what a training loop calls) and serving (its other side), wire (what they say to each other), computing
(what is computed on each side), exchange (questions on their way, again and never twice), server (from streams to
batches that are applied exactly once), sharing (several clients: averaged parts, blocks of features, turns), held_out
(does what the server sends make the model better?), no_peek (a loss by which activations tell less about the data).
Then examples (samples, a network to cut, and a decoder that attacks its activations).

Called by recipes, simulation and cli.
"""

from minga.split.client import Client
from minga.split.no_peek import NoPeek, distance_correlation
from minga.split.serving import SplitServer, SplitStatus, serve

__all__ = [
    "Client",
    "NoPeek",
    "SplitServer",
    "SplitStatus",
    "distance_correlation",
    "serve",
]
