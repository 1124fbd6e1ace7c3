"""Split learning: a model that is cut between those who hold data and a server that computes the rest.

    client ─▶ computing (bottom, head) ─▶ exchange ═ wire: split.begin, split.batch ═▶ server ─▶ computing (top)
                   ◀───────────── gradients, activations: encoded, checked ─────────────┘           ◀─ serving

Read: client (what a training loop calls) and serving (its other side), wire (what they say to each other), computing
(what is computed on each side), exchange (questions on their way, again and never twice), server (from streams to
batches that are applied exactly once), finding (which peer serves).

Called by recipes, simulation and cli. It knows nothing of averaging.
"""

from minga.split.client import Client
from minga.split.serving import SplitServer, SplitStatus, serve

__all__ = ["Client", "SplitServer", "SplitStatus", "serve"]
