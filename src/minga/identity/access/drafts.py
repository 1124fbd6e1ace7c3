"""Orders as an organiser would sign them, from what a ledger knows: the term, and the next number or version."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from minga.core.errors import ConfigurationError
from minga.identity.access.amendments import MAX_CHANGES, MAX_VALUE_CHARACTERS, Amendment
from minga.identity.access.ledger import AccessLedger
from minga.identity.access.orders import MAX_REASON_CHARACTERS, RangeBan, Revocation
from minga.identity.access.ranges import parse_range


def draft_amendment(ledger: AccessLedger, changes: Mapping[str, Any], from_step: int, now: int) -> Amendment:
    """These settings change in rounds of `from_step` and later ones; `now` in Unix seconds.

    Raises `ConfigurationError` for too many settings, or too long values; whether they can change is for others to say.
    """
    said = tuple((key, json.dumps(value)) for key, value in sorted(changes.items()))
    if len(said) > MAX_CHANGES or any(len(text) > MAX_VALUE_CHARACTERS for _, text in said):
        raise ConfigurationError(f"one amendment changes at most {MAX_CHANGES} settings, by short values")
    return Amendment(_run(ledger), ledger.term, now, (), ledger.amendments.next_number, from_step, said)


def draft_revocation(ledger: AccessLedger, key: str, reason: str, now: int) -> Revocation:
    """The key of a peer or of an invitation is barred.

    Raises `ConfigurationError` for a reason that cannot be shown.
    """
    _check_reason(reason)
    return Revocation(_run(ledger), ledger.term, now, (), bytes.fromhex(key), ledger.next_version, reason)


def draft_range_ban(ledger: AccessLedger, addresses: str, until: int, reason: str, now: int) -> RangeBan:
    """The address range, in CIDR notation, is barred until then (Unix seconds).

    Raises `ConfigurationError` for a range that is none or too large, or a reason that cannot be shown.
    """
    _check_reason(reason)
    try:
        network = parse_range(addresses)
    except ValueError as error:
        raise ConfigurationError(str(error)) from error
    return RangeBan(_run(ledger), ledger.term, now, (), str(network), until, reason)


def _run(ledger: AccessLedger) -> bytes:
    return bytes.fromhex(ledger.run_id)


def _check_reason(reason: str) -> None:
    if len(reason) > MAX_REASON_CHARACTERS or not reason.isprintable():
        raise ConfigurationError(f"a reason has at most {MAX_REASON_CHARACTERS} printable characters")
