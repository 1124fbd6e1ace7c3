"""How the peers of a benchmark without trainers come together: each in a process of its own, by addresses."""

from __future__ import annotations

from typing import Any

from benchmarks._worker import Channel
from minga.identity.keys.keys import Identity
from minga.network.interface import Address, PeerId
from minga.network.iroh.network import IrohNetwork, NetworkSettings
from minga.training.session import Session, SessionSettings

RUN_ID = "0" * 64


async def enter(entries: list[Any], network: NetworkSettings, settings: SessionSettings) -> tuple[Session, Identity]:
    """A session under a new key, in the run of the peers whose `entries` are as `tell_address` told them."""
    identity = Identity.generate()
    opened = await IrohNetwork.open(identity.seed, network)
    addresses = [Address(PeerId(peer), tuple(direct)) for peer, direct in entries]
    session = Session(opened, identity, RUN_ID, settings, addresses)
    await session.start()
    return session, identity


def tell_address(channel: Channel, session: Session) -> None:
    """Tell the coordinator where others can enter by this peer."""
    channel.send(address=[session.peer_id, session.node.address.direct])
