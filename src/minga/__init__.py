"""minga: train one neural network together with people you do not know, over the internet.

peer = minga.join(link)
optimizer = minga.Optimizer(minga.optim.AdamW(model.parameters()), peer, model=model)
"""

from importlib import import_module
from typing import TYPE_CHECKING

from minga.core.errors import (
    ClosedError,
    ConfigurationError,
    IdentityError,
    LinkError,
    LocalError,
    MingaError,
    MinorityError,
    NonFiniteError,
    NoStateError,
    ProtocolError,
    RejectedError,
    RemoteError,
    RunFinishedError,
    SilentError,
    StateMismatchError,
    StorageError,
    UnfitError,
    UnreachableError,
)
from minga.core.events.bus import Event

if TYPE_CHECKING:
    from minga.core.spec.run_spec import RunSpec
    from minga.identity.links.links import Link
    from minga.login.credentials import Credentials
    from minga.training.host import host
    from minga.training.join import PeerOptions, join
    from minga.training.optimizer import Optimizer
    from minga.training.peer import Peer

__all__ = [
    "ClosedError",
    "ConfigurationError",
    "Credentials",
    "Event",
    "IdentityError",
    "Link",
    "LinkError",
    "LocalError",
    "MingaError",
    "MinorityError",
    "NoStateError",
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
    "UnfitError",
    "UnreachableError",
    "host",
    "join",
]

_LATE = {  # what takes long to import, torch above all, is imported when it is first asked for
    "Credentials": "minga.login.credentials",
    "Link": "minga.identity.links.links",
    "Optimizer": "minga.training.optimizer",
    "Peer": "minga.training.peer",
    "PeerOptions": "minga.training.join",
    "RunSpec": "minga.core.spec.run_spec",
    "host": "minga.training.host",
    "join": "minga.training.join",
}


def __getattr__(name: str) -> object:
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(_LATE[name]), name)
    value.__module__ = __name__
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__


for _name in set(__all__) - set(_LATE):  # tracebacks and documentation show the public path
    globals()[_name].__module__ = __name__
del _name
