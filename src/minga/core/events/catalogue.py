"""The catalogue of events: every kind that a peer emits, and what its fields mean.

Displays, logs, fault scripts and JSON output read it, and `docs/events.md` is made from it. Each room of the package
has a module of kinds, one class a kind. To add one, add a class there, emit it, and run `make docs`. Names of kinds
and fields stay as they are: users' logs and scripts hold them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from types import MappingProxyType, ModuleType
from typing import Any, Final, cast

from minga.core.events import averaging, network, security, split, training
from minga.core.events.bus import EventData

MODULES: Final = (network, averaging, training, security, split)

FIELDS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "step": "number of the global step",
        "peer": "id of the peer that it is about",
        "leader": "id of the leader",
        "sender": "id of the peer that passed it on",
        "round": "id of the round",
        "why": "the reason, in words",
        "reason": "the reason",
        "seconds": "duration in seconds",
        "waited_s": "duration in seconds",
        "predicted_s": "duration in seconds; null if the plan does not say",
        "upload": "bytes per second that the access link carries; null if unknown",
        "download": "bytes per second that the access link carries; null if unknown",
        "bytes_sent": "bytes",
        "bytes_received": "bytes",
        "received_bytes": "bytes",
        "done_bytes": "bytes",
        "total_bytes": "bytes",
        "members": "number of members",
        "samples": "number of samples",
        "batch": "number of samples",
        "lost": "number of members",
        "expires": "Unix time in seconds",
        "digest": "state digest, 64 hexadecimal digits",
        "donors": "ids of the peers that sent some of it",
        "file": "name of the file",
        "invitation": "id of the invitation",
    }
)
"""What a field means, and its unit, wherever a class does not say more."""


def fields_of(data: type[EventData]) -> tuple[dataclasses.Field[Any], ...]:
    """The fields of one kind, in their order."""
    return dataclasses.fields(cast(Any, data))


def kinds_of(module: ModuleType) -> Iterator[type[EventData]]:
    """The kinds that one module defines, in their order."""
    for value in vars(module).values():
        if isinstance(value, type) and issubclass(value, EventData) and value is not EventData:
            yield value


CATALOGUE: Final[Mapping[str, type[EventData]]] = MappingProxyType(
    {data.kind: data for module in MODULES for data in kinds_of(module)}
)
"""The class of every kind of event, by the name of the kind."""
