"""May this machine take part in the run? Its own key and addresses count, though the doctor enters with another key.

A peer of this machine may hold the key at the moment, so the doctor enters as a monitor for which the key vouches. In
a run for members that shows whether the key is admitted. The organisers' orders, which every peer passes on, show
whether the key or an address of this machine is banned; so the doctor gets them and judges as every member does.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from minga.access.access_files import AccessFiles
from minga.access.admission import Admission
from minga.access.standing_orders import OrderExchange
from minga.cli.diagnosing.machine import Finding
from minga.core.errors import IdentityError, RejectedError, RemoteError
from minga.core.refusal_code import RefusalCode
from minga.identity.access.ledger import AccessBannedError, AccessLedger, NoAccessError
from minga.identity.access.token import Token
from minga.identity.keys.keys import Identity
from minga.identity.links.links import Link
from minga.keeping.known_runs import FOLDER_DIGITS, runs_folder
from minga.network.interface import PeerId
from minga.network.rpc.node import Node
from minga.network.rpc.run_clock import RunClock
from minga.training.own_access import RunAccess

WATCH_S = 3600
"""For how long, in seconds, the doctor may look on: for a while also if the clock of this machine is behind."""

BANNED_ADVICE = "ask the organiser, who banned it and may admit you again"


@dataclass(frozen=True)
class OwnAccess:
    """The key of this machine (None: there is none yet), the token that it would show, and its `ip:port` endpoints."""

    identity: Identity | None
    token: Token | None
    endpoints: tuple[str, ...]

    @classmethod
    def of_this_machine(
        cls, link: Link, identity: Path | None, directory: Path | None, endpoints: Sequence[str]
    ) -> OwnAccess:
        """Read key and token as `minga join` does. Raises `LinkError` if the link admits another peer."""
        try:
            stored = Identity.stored(identity)
        except IdentityError:  # the check of the key file says why
            stored = []
        if not stored:
            return cls(None, None, tuple(endpoints))
        files = AccessFiles(runs_folder(directory) / link.run_id[:FOLDER_DIGITS])
        token = RunAccess(files, link, keeps=False).token(stored[0].peer_id, time.time())
        return cls(stored[0], token, tuple(endpoints))

    def admission(self, link: Link, doctor: Identity, clock: RunClock) -> Admission:
        """What the doctor's own peer shows to others; it judges them by `clock`."""
        token = None
        if self.identity is not None:
            expires = int(time.time()) + WATCH_S
            token = Token.for_watcher(link.run_id, self.identity, self.token, doctor.peer_id, expires)
        return Admission(PeerId(doctor.peer_id), clock, token)

    def joins_otherwise(self, link: Link, refused: RejectedError) -> bool:
        """Whether `minga join` has another way in than the one that a peer refused to the doctor."""
        return refused.code is RefusalCode.ACCESS and (self.token is None or link.authority is not None)

    async def check(self, node: Node, admission: Admission, ledger: AccessLedger, reached: Sequence[PeerId]) -> Finding:
        """Get the orders from the first peer that tells them, and judge."""
        admission.enforce(ledger)
        exchange = OrderExchange(node, admission, ledger)
        why = ""
        for peer in reached:
            try:
                await exchange.exchange(peer)
                return self.judge(ledger, admission.clock.now())
            except RemoteError as error:
                why = error.message
        return True, f"not known, as no peer tells the organisers' orders: {why}", ""

    def judge(self, ledger: AccessLedger, now_s: float) -> Finding:
        """What the orders say of this machine; `now_s` is in Unix seconds."""
        own_id = "" if self.identity is None else self.identity.peer_id
        try:
            ledger.check_address(own_id, self.endpoints, now_s)
            if self.identity is not None:
                ledger.check(self.token, own_id, now_s)
        except AccessBannedError as error:
            return False, str(error), BANNED_ADVICE
        except NoAccessError as error:
            return False, str(error), "ask the organiser, who can admit you"
        return True, "neither key nor address of this machine is banned", ""
