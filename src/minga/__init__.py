"""minga: train one neural network together with people you do not know, over the internet.

peer = minga.join(link)
optimizer = minga.Optimizer(torch.optim.AdamW(model.parameters()), peer)
"""

from minga.core._errors import (
    ClosedError,
    ConfigurationError,
    IdentityError,
    LinkError,
    LocalError,
    MingaError,
    MinorityError,
    NonFiniteError,
    ProtocolError,
    RejectedError,
    RemoteError,
    RunFinishedError,
    SilentError,
    StateMismatchError,
    StorageError,
    UnreachableError,
)
from minga.core._events import Event
from minga.core._run_spec import RunSpec
from minga.identity._links import Link
from minga.training._entrance import PeerOptions, host, join
from minga.training._optimizer import Optimizer
from minga.training._peer import Peer

__all__ = [
    "ClosedError",
    "ConfigurationError",
    "Event",
    "IdentityError",
    "Link",
    "LinkError",
    "LocalError",
    "MingaError",
    "MinorityError",
    "NonFiniteError",
    "Optimizer",
    "Peer",
    "PeerOptions",
    "ProtocolError",
    "RejectedError",
    "RemoteError",
    "RunFinishedError",
    "RunSpec",
    "SilentError",
    "StateMismatchError",
    "StorageError",
    "UnreachableError",
    "host",
    "join",
]

for _name in __all__:  # tracebacks and documentation show the public path
    globals()[_name].__module__ = __name__
del _name
