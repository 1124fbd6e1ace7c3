"""What `import minga` offers, pinned: names come and go on purpose only."""

from __future__ import annotations

import inspect

import minga

NAMES = [
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


def test_public_names() -> None:
    assert sorted(minga.__all__) == NAMES
    assert list(minga.__all__) == sorted(minga.__all__)
    assert set(dir(minga)) >= set(NAMES)


def test_every_public_name_is_documented_and_says_where_it_is_from() -> None:
    for name in NAMES:
        thing = getattr(minga, name)
        assert inspect.getdoc(thing), name
        assert thing.__module__ == "minga", name
