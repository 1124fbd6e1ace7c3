"""Split learning: a model that is cut between clients that hold data and a server that computes the rest.

    client ─▶ computing (bottom, head) ─▶ exchange ═ wire: split.begin, split.batch ═▶ server ─▶ computing (top)
                   ◀───────────── gradients, activations: encoded, checked ─────────────┘           ◀─ serving

Read: client (what a training loop calls) and serving (its other side), wire (what they say to each other), computing
(what is computed on each side), exchange (questions on their way, again and never twice), server (from streams to
batches that are applied exactly once), finding (which peer serves), sharing (several clients: averaged parts, blocks of
features, turns), standby (a server that dies is followed by another), held_out (does what the server sends make the
model better?). Then examples (samples and networks to cut) and leakage (what activations tell about the data: NoPeek,
and the leakage report).

Called by recipes, simulation and cli.
"""

from minga.split.client import Client
from minga.split.examples.subject import LeakageSubject
from minga.split.leakage.comparison import compare_leakage
from minga.split.leakage.distance_correlation import distance_correlation
from minga.split.leakage.gradient_noise import GradientNoise
from minga.split.leakage.no_peek import NoPeek
from minga.split.leakage.report import LeakageReport
from minga.split.leakage.settings import LeakageSettings
from minga.split.serving import SplitServer, SplitStatus, serve, stand_by

__all__ = [
    "Client",
    "GradientNoise",
    "LeakageReport",
    "LeakageSettings",
    "LeakageSubject",
    "NoPeek",
    "SplitServer",
    "SplitStatus",
    "compare_leakage",
    "distance_correlation",
    "serve",
    "stand_by",
]
