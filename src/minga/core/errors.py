"""The errors that users of minga meet, as one tree; those that only inner parts catch are declared there.

    MingaError
    ├── LocalError                this machine, its user or its settings
    │   ├── ConfigurationError    a run spec, an option or an argument is not acceptable
    │   │   └── UnfitError        what this program trains is something else than what the run trains
    │   ├── LinkError             a link cannot be read
    │   ├── IdentityError         a key file cannot be used
    │   ├── StorageError          the disk refused a checkpoint or a cache
    │   ├── ClosedError           the peer or the network was closed while it was used
    │   ├── MinorityError         the majority of the swarm is out of sight; training alone would fork the run
    │   ├── NoStateError          nobody who has the run's state could be reached for a long time
    │   ├── RunFinishedError      the run reached its last step; nothing is wrong
    │   └── NonFiniteError        a local gradient or state holds NaN or infinity
    └── RemoteError               peer P, in round R, in phase F
        ├── UnreachableError      no connection to P
        ├── SilentError           P stopped answering
        ├── ProtocolError         P sent something that the protocol does not allow
        ├── RejectedError         P understood and refused
        └── StateMismatchError    P served state that does not match its digest

The two branches never mix: a `LocalError` tells its reader what to change here, a `RemoteError` names the peer
that is to blame, so that callers can drop that peer and go on.
"""

from __future__ import annotations

from minga.core.refusal_code import RefusalCode


class MingaError(Exception):
    """Base of everything that minga raises on purpose."""


class LocalError(MingaError):
    """Something on this machine, or something its user said, is wrong."""


class ConfigurationError(LocalError):
    """A run spec, an option or an argument is not acceptable; the message names the field."""


class UnfitError(ConfigurationError):
    """This program trains something else than its run, or something else than it began with; the message names it."""


class LinkError(LocalError):
    """A link cannot be read: mistyped, truncated or from an incompatible version."""


class IdentityError(LocalError):
    """A key file is missing, unreadable or open to other users."""


class StorageError(LocalError):
    """The disk refused to store or return a file; nothing half-written is left behind."""


class ClosedError(LocalError):
    """The object was closed, by this program, before or while it was used."""


class MinorityError(LocalError):
    """The majority of the last membership view cannot be seen from here, so training would fork the run."""


class NoStateError(LocalError):
    """This peer has no state of the run, and no peer that has it could be reached for a long time."""


class RunFinishedError(LocalError):
    """The run reached the last step that its spec asks for; there is nothing left to train."""


class NonFiniteError(LocalError):
    """A gradient or parameter on this machine is NaN or infinite."""


class RemoteError(MingaError):
    """Another peer did wrong or went away.

    `peer` is its peer id (hex), `round` the global step concerned and `phase` what was going on; the last two are
    `None` where no round was involved.
    """

    def __init__(
        self, message: str, *, peer: str | None = None, round: int | None = None, phase: str | None = None
    ) -> None:
        self.message, self.peer, self.round, self.phase = message, peer, round, phase
        where = [f"peer {peer[:10]}"] if peer else []
        where += [f"round {round}"] if round is not None else []
        where += [phase] if phase else []
        super().__init__(f"{', '.join(where)}: {message}" if where else message)


class UnreachableError(RemoteError):
    """No connection to the peer could be made, or the one there was is gone."""


class SilentError(RemoteError):
    """The peer stopped answering for longer than the derived timeout."""


class ProtocolError(RemoteError):
    """The peer sent something malformed, oversized, replayed or out of turn."""


class RejectedError(RemoteError):
    """The peer understood the request and refused it; `code` is for programs, the message for people, and `proof` shows
    what a refused peer need not take another's word for.
    """

    code = RefusalCode.REFUSED

    def __init__(
        self,
        message: str,
        *,
        code: RefusalCode = RefusalCode.REFUSED,
        proof: bytes = b"",
        peer: str | None = None,
        round: int | None = None,
        phase: str | None = None,
    ) -> None:
        self.code, self.proof = code, proof
        super().__init__(message, peer=peer, round=round, phase=phase)


class StateMismatchError(RemoteError):
    """The peer served bytes that do not match the digest that was agreed on."""


def reason_of(error: OSError) -> str:
    """What the system says is wrong, for a message that names the file or address itself."""
    return error.strerror or str(error)
