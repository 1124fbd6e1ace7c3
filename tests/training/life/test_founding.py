"""How a run with strangers is founded, whatever others say meanwhile; in virtual time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from minga.access.admission import Admission
from minga.core.errors import StorageError
from minga.core.events.bus import Event
from minga.core.events.network import PeerOffence
from minga.core.events.security import SecureWaiting
from minga.core.files import write_atomically
from minga.identity.access.ledger import AccessLedger, draft_revocation
from minga.network.gossip.board import Board
from minga.network.interface import PeerId
from minga.network.rpc.node import Node
from minga.network.rpc.stream import MessageStream
from minga.network.virtual.internet import HostSettings
from minga.simulation.swarm.simulated_peer import TrainerSettings
from minga.simulation.swarm.swarm import Swarm
from minga.training.life.founding import (
    ASK_PERIOD_S,
    CALL_S,
    DISK_PERIOD_S,
    MAX_READY,
    METHOD,
    MOST_LOST,
    READY_S,
    AskFounders,
    Bootstrap,
    Founding,
    FoundingRules,
    Genesis,
    GenesisAnswer,
    Participation,
)
from minga.training.lineage import Lineage
from minga.training.record_kinds import RUN_KINDS, Progress
from tests.worlds.node_world import RUN_ID, World, identity_of
from tests.worlds.swarm_tools import make_spec, virtually

STATE = "5" * 64


def board_of(node: Node) -> Board:
    clock = asyncio.get_running_loop().time
    return Board(identity_of(node), node.run_id, run_clock=node.clock, clock=clock, events=node.events, kinds=RUN_KINDS)


class Foundation(World):
    """The first node is the organiser's."""

    def __init__(self, folder: Path, founders: int = 3) -> None:
        super().__init__()
        self.folder, self.founders = folder, founders
        self.boards = dict[PeerId, Board]()
        self.admissions = dict[PeerId, Admission]()

    def founding(self, node: Node) -> Founding:
        path = self.folder / node.peer_id[:10]
        many = {"verification": "byzantine", "founders": self.founders}
        sections = {"security": many} if self.founders > 1 else {"state": {"founder": "first"}}
        organiser = self.nodes[0].peer_id
        known = Genesis.from_file(path, node.run_id, organiser)
        run = Participation(make_spec(8, **sections), organiser, "trainer")
        board = self.boards[node.peer_id] = board_of(node)
        admission = self.admissions[node.peer_id] = Admission.for_everybody(node.peer_id, node.clock)
        return Founding(node, identity_of(node), board, admission, run, path, known)

    def tell(self, node: Node, teller: Node, founding: str) -> None:
        """Let `node` hear that `teller` is at step 5 of a run with this founding."""
        telling, hearing = board_of(teller), self.boards[node.peer_id]
        telling.on_signed.add(lambda record: hearing.receive(record, teller.peer_id) and None)
        telling.put(Progress(5, 0, 0.0, "training", lineage=Lineage.founded(founding)))
        assert hearing.payloads(Progress)[teller.peer_id].step == 5


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
        monkeypatch.setattr("minga.core.files.write_atomically", refuse)
        with pytest.raises(StorageError):
            await world.founding(organiser).find(STATE)
        assert await other.call(organiser.peer_id, METHOD, AskFounders(STATE), GenesisAnswer) == GenesisAnswer(None, 0)

    main()


def test_whoever_has_asked_nobody_yet_does_not_say_that_the_run_waits_for_founders(tmp_path: Path) -> None:
    """The first line of who joined a run at step 137 said that 0 of 1 were there."""

    @virtually
    async def main() -> None:
        world, seen = Foundation(tmp_path, founders=1), list[tuple[int, int] | None]()
        organiser = await world.node()
        world.nodes.clear()
        joiner = await world.node()
        world.nodes.insert(0, organiser)
        founding = world.founding(joiner)
        finding = asyncio.ensure_future(founding.find())
        await asyncio.sleep(2 * ASK_PERIOD_S)
        genesis = Genesis.sign(RUN_ID, [organiser.peer_id], STATE, identity_of(organiser))

        def answer() -> GenesisAnswer:
            seen.append(founding.waiting)
            return GenesisAnswer(None if len(seen) == 1 else genesis, 0)

        organiser.serve(METHOD, answer_with(answer))  # type: ignore[arg-type]
        await joiner.dial(organiser.network.address)
        await finding
        assert seen == [None, (0, 1)]

    main()


def test_a_disk_that_was_full_once_keeps_no_run_from_its_founding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write, refused = write_atomically, list[Path]()

    def refuse_once(path: Path, body: bytes) -> None:
        if not refused:
            refused.append(path)
            raise OSError("no space left")
        write(path, body)

    @virtually
    async def main() -> None:
        world = Foundation(tmp_path, founders=1)
        organiser, other = await world.node(), await world.node()
        monkeypatch.setattr("minga.core.files.write_atomically", refuse_once)
        organiser.spawn(world.founding(organiser).look_on())
        async with asyncio.timeout(2 * DISK_PERIOD_S):
            genesis = (await world.founding(other).find(STATE)).genesis
        assert world.founding(organiser).genesis == genesis
        assert refused == [tmp_path / organiser.peer_id[:10]]
        assert ["no space left" in record.message for record in caplog.records] == [True]

    with caplog.at_level(logging.WARNING, "minga.training"):
        main()


OTHER = "6" * 32
"""The id of another founding than the run's."""


@virtually
async def test_each_number_of_founders_is_told_once_though_two_calls_wait_for_them(tmp_path: Path) -> None:
    world = Foundation(tmp_path)
    organiser, *others = [await world.node() for _ in range(4)]
    organiser.spawn(world.founding(organiser).look_on())
    first = world.founding(others[0])
    told = list[SecureWaiting]()
    others[0].events.subscribe(lambda event: told.append(event.data) if isinstance(event.data, SecureWaiting) else None)
    others[0].spawn(first.look_on())
    async with asyncio.TaskGroup() as group:
        group.create_task(first.find(STATE))
        for other in others[1:]:
            await asyncio.sleep(4.0 * ASK_PERIOD_S)
            group.create_task(world.founding(other).find(STATE))
    assert [event.ready for event in told] == [1, 2, 3]


@virtually
async def begins(
    folder: Path, *, lost: int = 1, organiser_sees: str | None = None, sees: str | None = None
) -> tuple[bool, float]:
    """Whether a peer that has the first state, which the recipe gives all, may begin with it, and after which seconds,
    if so many answers of the organiser are lost. A stranger tells the organiser, or this peer, of a later step of that
    founding; "" stands for the run's.
    """
    world = Foundation(folder, founders=1)
    organiser, volunteer, stranger = [await world.node() for _ in range(3)]
    of_organiser, asking = world.founding(organiser), world.founding(volunteer)
    of_organiser.rules = asking.rules = FoundingRules(alike=True)
    of_organiser.first, genesis = STATE, Genesis.sign(RUN_ID, [], STATE, identity_of(organiser))
    for node, seen in (organiser, organiser_sees), (volunteer, sees):
        if seen is not None:
            world.tell(node, stranger, seen or genesis.id)
    organiser.spawn(of_organiser.look_on())
    serve = of_organiser._serve

    async def serve_later(peer: PeerId, stream: MessageStream) -> None:
        nonlocal lost
        if asking.genesis is not None:
            lost -= 1
            if lost >= 0:
                await asyncio.Event().wait()
        await serve(peer, stream)

    organiser.serve(METHOD, serve_later)
    find = asyncio.ensure_future(asking.find(STATE))
    while asking.genesis is None:
        await asyncio.sleep(0.01)
    assert asking.genesis == genesis
    begun_s = asyncio.get_running_loop().time()
    beginning = await find
    assert lost <= 0
    return not beginning.has_begun, asyncio.get_running_loop().time() - begun_s


@pytest.mark.parametrize(
    ("organiser_sees", "sees", "may"), [(None, None, True), ("", None, False), (None, "", True), (OTHER, OTHER, True)]
)
def test_whether_a_peer_may_begin_is_asked_again_if_the_answer_is_lost(
    tmp_path: Path, organiser_sees: str | None, sees: str | None, may: bool
) -> None:
    """It waited half an hour for a peer with the state that it had itself, and for ever after a stranger told of a
    state that is none of the run's, or a peer was killed whose record was still there.
    """
    may_begin, seconds = begins(tmp_path, organiser_sees=organiser_sees, sees=sees)
    assert may_begin is may
    assert seconds < 2 * CALL_S


def test_an_organiser_that_answers_no_more_holds_nobody_back_from_a_run_that_has_begun(tmp_path: Path) -> None:
    """Whoever came while it was too busy to answer waited for a quarter of an hour beside a peer that had the state."""
    may_begin, seconds = begins(tmp_path, lost=MOST_LOST, sees="")
    assert not may_begin
    assert seconds < 4 * CALL_S


def test_who_was_ended_before_anybody_began_may_begin_when_it_is_started_again(tmp_path: Path) -> None:
    """It had the genesis, and no state: it waited for one that nobody had."""

    @virtually
    async def main() -> None:
        world = Foundation(tmp_path, founders=1)
        organiser, volunteer, trainer = [await world.node() for _ in range(3)]
        of_organiser = world.founding(organiser)
        of_organiser.rules, of_organiser.first = FoundingRules(alike=True), STATE
        organiser.spawn(of_organiser.look_on())
        begun = [await world.founding(volunteer).find(STATE) for _ in range(2)]
        world.tell(organiser, trainer, begun[0].genesis.id)
        begun.append(await world.founding(volunteer).find(STATE))
        assert [each.has_begun for each in begun] == [False, False, True]

    main()


def test_a_liar_that_names_the_founding_keeps_others_from_beginning_until_it_is_banned(tmp_path: Path) -> None:
    """It did so for good: who was seen at a step counts also when it is gone, since its steps may have been true."""

    @virtually
    async def main() -> None:
        world = Foundation(tmp_path, founders=1)
        organiser, volunteer, liar = [await world.node() for _ in range(3)]
        of_organiser = world.founding(organiser)
        of_organiser.rules, of_organiser.first = FoundingRules(alike=True), STATE
        ledger = AccessLedger.of_spec("ab" * 32, make_spec(8), organiser.peer_id)
        world.admissions[organiser.peer_id].enforce(ledger)
        organiser.spawn(of_organiser.look_on())
        begun = [await world.founding(volunteer).find(STATE)]
        world.tell(organiser, liar, begun[0].genesis.id)
        world.boards[organiser.peer_id].expel(liar.peer_id)
        begun.append(await world.founding(volunteer).find(STATE))
        ledger.take(draft_revocation(ledger, liar.peer_id, "it lies", 0).signed_by(identity_of(organiser)))
        begun.append(await world.founding(volunteer).find(STATE))
        assert [each.has_begun for each in begun] == [False, True, False]

    main()


def test_a_stranger_that_tells_all_founders_of_a_later_step_keeps_none_from_beginning(tmp_path: Path) -> None:
    @virtually
    async def main() -> None:
        world = Foundation(tmp_path)
        *nodes, stranger = [await world.node() for _ in range(4)]
        foundings = [world.founding(node) for node in nodes]
        genesis = Genesis.sign(RUN_ID, [node.peer_id for node in nodes], STATE, identity_of(nodes[0]))
        for node in nodes:
            world.tell(node, stranger, genesis.id)
        begun = await asyncio.gather(*(each.find(STATE) for each in foundings))
        assert begun == [Bootstrap(genesis, has_begun=False)] * 3
        world.boards[nodes[1].peer_id].put(Progress(2, 0, 0.0, "training", lineage=Lineage.founded(genesis.id)))
        assert [each.step for each in foundings] == [0, 2, 0]

    main()


def test_who_has_the_first_state_does_not_wait_for_an_organiser_that_left_when_another_peer_had_begun(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It asked the organiser alone until its wait was over, half an hour later, and failed."""
    monkeypatch.setattr(FoundingRules, "of", lambda _: FoundingRules(alike=True))

    @virtually
    async def main() -> None:
        swarm = Swarm(make_spec(1000), seed=1)
        try:
            near = HostSettings(latency_s=0.02)
            host = swarm.add(near, TrainerSettings(1, 1.0), name="host", load_s=1e9)  # only looks on
            await asyncio.sleep(0.1)
            founding = host.session.founding
            assert founding is not None
            founding.first = host.replica.digest()
            host.session.node.spawn(founding.look_on())
            swarm.add(near, TrainerSettings(1, 5.0), name="first")
            await asyncio.sleep(3.0)
            swarm.internet.kill("host")
            await asyncio.sleep(60.0)
            late = swarm.add(near, TrainerSettings(1, 5.0), name="late")
            await asyncio.sleep(30.0)
            assert late.session.member is not None
            assert late.session.member.ready.is_set()
            assert late.replica.step == 0
        finally:
            await swarm.close()

    main()


def test_the_organiser_signs_once_whichever_of_its_calls_is_first(tmp_path: Path) -> None:
    """Its trainer came while its peer, which had asked somebody silent, was about to name another founder."""

    async def be_silent(_: PeerId, stream: MessageStream) -> None:
        await asyncio.Event().wait()

    @virtually
    async def main() -> None:
        world = Foundation(tmp_path, founders=1)
        organiser, volunteer, silent = [await world.node() for _ in range(3)]
        silent.serve(METHOD, be_silent)
        founding, other = world.founding(organiser), world.founding(volunteer)
        finding = [asyncio.ensure_future(other.find("6" * 64)), asyncio.ensure_future(founding.find())]
        await asyncio.sleep(CALL_S - 1.0)
        finding.append(asyncio.ensure_future(founding.find(STATE)))
        await asyncio.sleep(3 * CALL_S)
        kept = world.founding(organiser).genesis
        assert kept is not None
        assert [task.result().genesis for task in finding] == [kept] * 3

    main()


def test_where_the_organiser_only_looks_on_founders_hear_of_what_most_others_have(tmp_path: Path) -> None:
    @virtually
    async def main() -> None:
        world, other = Foundation(tmp_path), "6" * 64
        nodes = [await world.node() for _ in range(4)]
        foundings = [world.founding(node) for node in nodes]
        states = ("", STATE, other, STATE)
        finding = [asyncio.ensure_future(each.find(state)) for each, state in zip(foundings, states, strict=True)]
        await asyncio.sleep(3.0)
        assert foundings[2].other_first(other) in [(nodes[1].peer_id, STATE), (nodes[3].peer_id, STATE)]
        assert foundings[1].other_first(STATE) == (nodes[2].peer_id, other)
        assert foundings[0].other_first("") is None
        for task in finding:
            task.cancel()

    main()


def test_who_sends_a_forged_genesis_is_blamed_once_and_not_asked_again(tmp_path: Path) -> None:
    @virtually
    async def main() -> None:
        world = Foundation(tmp_path, founders=2)
        organiser, forger, asking = [await world.node() for _ in range(3)]
        forged, asked = Genesis.sign(RUN_ID, [forger.peer_id], STATE, identity_of(forger)), list[PeerId]()

        async def forge(peer: PeerId, stream: MessageStream) -> None:
            asked.append(peer)
            await answer_with(lambda: GenesisAnswer(forged, 0))(peer, stream)  # type: ignore[misc]

        forger.serve(METHOD, forge)
        offences = list[Event]()
        asking.events.subscribe(lambda event: offences.append(event) if event.kind == PeerOffence.kind else None)
        finding = asyncio.ensure_future(world.founding(asking).find(STATE))
        await asyncio.sleep(20.0)
        assert asked == [asking.peer_id]
        assert [offence.fields["peer"] for offence in offences] == [forger.peer_id]
        founding = await world.founding(organiser).find(STATE)
        assert (await finding).genesis == founding.genesis

    main()
