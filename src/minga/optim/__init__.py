"""Optimizers that give equal bits from equal gradients, on every device, with any vector width and number of threads.

    gradients ─▶ norms: clip_by_global_norm ─▶ sgd · adamw · muon · lamb · lars ─▶ parameters
                                                 │ step, state: reproducible
                                                 └ pieces ─▶ arithmetic (what may be computed where)

Read: arithmetic (operations that round alike everywhere), shards (tensors of which each process holds a part), pieces
(tensors as flat pieces), norms (sums in a fixed order, clipping), reproducible (the base class), block_codes (numbers
in 8 bits), moments (of AdamW and LAMB), then sgd, adamw, muon, lamb, lars (LARC as well), and together (several
as one).

Called by training, recipes and programs of users. It knows tensors only: no peers, no run spec.
"""

from minga.optim.adamw import AdamW
from minga.optim.lamb import LAMB
from minga.optim.lars import LARC, LARS
from minga.optim.moments import MomentStorage
from minga.optim.muon import Muon, muon_groups
from minga.optim.norms import clip_by_global_norm
from minga.optim.reproducible import ReproducibleOptimizer
from minga.optim.sgd import SGD
from minga.optim.together import Together

__all__ = [
    "LAMB",
    "LARC",
    "LARS",
    "SGD",
    "AdamW",
    "MomentStorage",
    "Muon",
    "ReproducibleOptimizer",
    "Together",
    "clip_by_global_norm",
    "muon_groups",
]
