"""How a run with strangers is founded, whatever others say meanwhile; in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from minga.core.errors import StorageError
from minga.identity.keys.keys import Identity
from minga.network.interface import PeerId
from minga.network.rpc.framing import MessageStream
from minga.network.rpc.node import Node
from minga.simulation.swarm.swarm import Swarm
from minga.training.life import founding as founding_module
from minga.training.life.founding import (
    CALL_S,
    MAX_READY,
    METHOD,
    READY_S,
    AskFounders,
    Bootstrap,
    Founding,
    FoundingRules,
    Genesis,
    GenesisAnswer,
)
from minga.training.session import Session, SessionSettings
from tests.worlds.node_world import RUN_ID, World, identity_of
from tests.worlds.swarm_tools import make_spec, virtually

STATE = "5" * 64


class Foundation(World):
    """The first node is the organiser's."""

    def __init__(self, folder: Path, founders: int = 3) -> None:
        super().__init__()
        self.folder, self.founders = folder, founders

    def founding(self, node: Node) -> Founding:
        path = self.folder / node.peer_id[:10]
        rules = FoundingRules(self.founders, by_organiser=False)
        return Founding(node, identity_of(node), self.nodes[0].peer_id, rules, path)


def answer_with(answer: Callable[[], GenesisAnswer]) -> Callable[[PeerId, MessageStream], object]:
    async def serve(_: PeerId, stream: MessageStream) -> None:
        await stream.receive(AskFounders)
        await stream.send(answer())

    return serve


@virtually
async def begin(folder: Path, says: dict[int, int]) -> bool:
    """Whether the run seems to have begun to a founder that hears of the genesis from a stranger who says step 5, if
    the other founders say what `says` has for them; they do not answer else.
    """
    world = Foundation(folder)
    organiser, one, other, stranger = [await world.node() for _ in range(4)]
    late = await world.node()
    genesis = Genesis.sign(
        RUN_ID, [organiser.peer_id, one.peer_id, other.peer_id, late.peer_id], STATE, identity_of(organiser)
    )
    stranger.serve(METHOD, answer_with(lambda: GenesisAnswer(genesis, 5)))  # type: ignore[arg-type]
    for index, node in enumerate((organiser, one, other)):
        if index in says:
            node.serve(METHOD, answer_with(lambda step=says[index]: GenesisAnswer(None, step)))  # type: ignore[arg-type, misc]
    founding = world.founding(late)
    return (await founding.find(STATE)).has_begun


@pytest.mark.parametrize(
    ("says", "has_begun"),
    [({0: 0, 1: 0, 2: 0}, False), ({0: 7, 1: 7, 2: 0}, False), ({}, False), ({0: 7, 1: 7, 2: 8}, True)],
)
def test_a_run_has_begun_if_most_founders_say_so(tmp_path: Path, says: dict[int, int], has_begun: bool) -> None:
    assert begin(tmp_path, says) is has_begun


def test_who_has_the_genesis_of_the_time_before_its_start_does_not_begin_again(tmp_path: Path) -> None:
    @virtually
    async def main() -> None:
        world = Foundation(tmp_path, founders=1)
        node = await world.node()
        assert not (await world.founding(node).find(STATE)).has_begun
        assert (await world.founding(node).find(STATE)).has_begun

    main()


def test_a_peer_that_does_not_answer_keeps_nobody_from_founding(tmp_path: Path) -> None:
    """The founders ask it each time anew, and each at another moment."""

    async def be_silent(_: PeerId, stream: MessageStream) -> None:
        await asyncio.Event().wait()

    @virtually
    async def main() -> None:
        world = Foundation(tmp_path, founders=6)
        nodes = [await world.node() for _ in range(7)]
        nodes[1].serve(METHOD, be_silent)
        finding = list[asyncio.Task[Bootstrap]]()
        for node in (nodes[0], *nodes[2:]):
            finding.append(asyncio.get_running_loop().create_task(world.founding(node).find(STATE)))
            await asyncio.sleep(0.9)
        async with asyncio.timeout(3 * CALL_S):
            assert not any(beginning.has_begun for beginning in await asyncio.gather(*finding))

    main()


def test_those_who_were_ready_once_are_forgotten(tmp_path: Path) -> None:
    @virtually
    async def main() -> None:
        world = Foundation(tmp_path)
        organiser, other = await world.node(), await world.node()
        founding = world.founding(organiser)
        for _ in range(2):
            for number in range(MAX_READY + 5):
                founding._note_ready(PeerId(f"{number:064}"), STATE)
            assert len(founding._ready) == MAX_READY
            await asyncio.sleep(READY_S + 1.0)
        await other.call(organiser.peer_id, METHOD, AskFounders(STATE), GenesisAnswer)
        assert [*founding._ready] == [other.peer_id]

    main()


def test_the_organiser_tells_nobody_of_a_genesis_that_is_not_on_its_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, body: bytes) -> None:
        raise OSError("no space left")

    @virtually
    async def main() -> None:
        world = Foundation(tmp_path, founders=1)
        organiser, other = await world.node(), await world.node()
        monkeypatch.setattr(founding_module, "write_atomically", refuse)
        with pytest.raises(StorageError):
            await world.founding(organiser).find(STATE)
        assert await other.call(organiser.peer_id, METHOD, AskFounders(STATE), GenesisAnswer) == GenesisAnswer(None, 0)

    main()


@pytest.mark.parametrize("is_organiser", [True, False])
def test_of_those_who_only_look_on_the_organiser_alone_keeps_who_the_founders_are(
    is_organiser: bool, tmp_path: Path
) -> None:
    @virtually
    async def play() -> None:
        two, three = (
            make_spec(4, security={"verification": "byzantine", "founders": founders, "micro_batch_size": 2})
            for founders in (2, 3)
        )
        spec = three if is_organiser else two
        swarm = Swarm(spec)
        member, _ = swarm.add(), swarm.add()  # who wait for another one, or have founded the run
        network = swarm.internet.host(name="looker")
        identity = Identity.from_seed(network.private_key)
        settings = SessionSettings("monitor")
        looker = Session(network, identity, spec.run_id, settings, [member.network.address])
        await looker.start()
        named = identity.peer_id if is_organiser else member.network.peer_id
        looker.preside(two, named, tmp_path)
        await asyncio.sleep(20.0)
        await looker.close()
        await swarm.close()

    play()
    assert [path.name.partition("-")[0] for path in tmp_path.iterdir()] == (["genesis"] if is_organiser else [])
