from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minga.core.errors import ConfigurationError
from minga.core.events.bus import Event
from minga.network.virtual.internet import HostSettings, Nat, VirtualInternet
from minga.simulation import AtEvent, AtTime, Fault, FaultDriver, VirtualFaults, parse_faults, run_virtual
from minga.simulation.swarm.swarm import Swarm
from tests.worlds.swarm_tools import make_spec, virtually

SCRIPT = """
    # a comment
    kill aggregator when plan.resting step=3
    kill emitter when leader emits plan.resting   # another
    stall peer-2 at 10s for 4s
    resume peer-2 at 1.5min

    drop_link peer-1 peer-3 at 500ms for 5s
    restore_link peer-1 peer-3 at 30s
    slow_link peer-1 to 100kbit at 5s
    slow_link peer-1 to 2Mbit when plan.resting step=3 resting=true for 2s
    lie peer-2 wrong-state at 3s
    kill peer-9
"""


def test_every_form_is_understood_and_written_as_it_is_read() -> None:
    found = parse_faults(SCRIPT)
    assert list(map(str, parse_faults("\n".join(map(str, found))))) == list(map(str, found))
    assert found == (
        Fault("kill", ("aggregator",), AtEvent("plan.resting", None, (("step", "3"),)), line=3),
        Fault("kill", ("emitter",), AtEvent("plan.resting", "leader"), line=4),
        Fault("stall", ("peer-2",), AtTime(10.0), 4.0, line=5),
        Fault("resume", ("peer-2",), AtTime(90.0), line=6),
        Fault("drop_link", ("peer-1", "peer-3"), AtTime(0.5), 5.0, line=8),
        Fault("restore_link", ("peer-1", "peer-3"), AtTime(30.0), line=9),
        Fault("slow_link", ("peer-1",), AtTime(5.0), bytes_per_s=12_500.0, line=10),
        Fault(
            "slow_link",
            ("peer-1",),
            AtEvent("plan.resting", None, (("step", "3"), ("resting", "true"))),
            2.0,
            250_000.0,
            line=11,
        ),
        Fault("lie", ("peer-2",), AtTime(3.0), behaviour="wrong-state", line=12),
        Fault("kill", ("peer-9",), AtTime(0.0), line=13),
    )
    assert parse_faults("") == parse_faults("\n # nothing\n\n") == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("explode peer-1 at 3s", "line 1, at `explode`: unknown fault; known are kill, stall"),
        ("\nkill", "line 2, at its end: the name of a peer or role"),
        ("kill at 3s", "at `at`: the name of a peer"),
        ("kill pe/er", "at `pe/er`: the name"),
        ("kill peer-1 peer-2", "at `peer-2`: `at`, `when` or `for`"),
        ("kill peer-1 at", "at its end: a time such as 10s"),
        ("kill peer-1 at 10", "at `10`: duration = '10' is not a duration: write ms, s, min, h or d"),
        ("kill peer-1 at -1s", "at `-1s`: duration = '-1s' is not a duration"),
        ("kill peer-1 at 9999999999s", "at `9999999999s`: duration = '9999999999s' is out of range"),
        ("kill peer-1 at nans", "at `nans`"),
        ("kill peer-1 at 1s at 2s", "at `at`: `at`, `when` or `for`"),
        ("kill peer-1 for 3s", "at `for`: kill has no duration"),
        ("stall peer-1 for 0s", "at `0s`: must be more than 0"),
        ("stall peer-1 for 1s at 2s", "at `at`: nothing more was expected"),
        ("kill peer-1 when", "at its end: the kind of an event"),
        ("kill peer-1 when plan.resting c", "at `c`: a condition such as step=3"),
        ("kill peer-1 when plan.resting step=", "at `step=`: a condition"),
        ("kill peer-1 when plan.resting =3", "at `=3`: a condition"),
        ("kill peer-1 when a:b", "at `a:b`: not the kind of an event"),
        (
            "kill peer-1 when round.reducing",
            "round.reducing`: not the kind of an event; did you mean round.reduced",
        ),
        ("kill peer-1 when round.aborted stop=3", "at `stop=3`: round.aborted has no field stop; it has step, why"),
        ("kill peer-1 when peer.not_dialable step=3", "it has none"),
        ("kill peer-1 when leader emits", "at its end: the kind of an event"),
        ("drop_link peer-1 at 3s", "at `at`: the name of a peer"),
        ("drop_link peer-1 peer-1", "at `peer-1`: a link joins two different peers"),
        ("slow_link peer-1 at 3s", "at `at`: `to` and a rate"),
        ("slow_link peer-1", "at its end: `to` and a rate"),
        ("slow_link peer-1 to 3s", "at `3s`: rate = '3s' is not a rate: write bits or bytes per second"),
        ("slow_link peer-1 to 0bit", "at `0bit`: rate = '0bit' is out of range: it must be more than 0"),
        ("lie peer-1 at 3s", "at `at`: what the lie is"),
        ("kill " + "x" * 500, "at `x{60}`: the name"),
        ("#" * 70_000, "a fault script of 70000 characters exceeds 65536"),
    ],
)
def test_mistakes_are_named_with_line_and_word(text: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        parse_faults(text)


@given(st.text(max_size=100) | st.lists(st.sampled_from(SCRIPT.split()), max_size=10).map(" ".join))
def test_garbage_is_refused_and_nothing_else(text: str) -> None:
    with contextlib.suppress(ConfigurationError):
        assert isinstance(parse_faults(text), tuple)


class Recorder(VirtualFaults):
    """Writes down what is to be done."""

    def __init__(self) -> None:
        self.done: list[tuple[Any, ...]] = []

    def do(self, fault: Fault, names: tuple[str, ...]) -> None:
        extra = {"slow_link": (fault.bytes_per_s,), "lie": (fault.behaviour,)}.get(fault.action, ())
        self.done.append((asyncio.get_running_loop().time(), fault.action, *names, *extra))


def drive(script: str, scene: Callable[[FaultDriver], Coroutine[Any, Any, None]], **options: Any) -> list[Any]:
    recorder = Recorder()

    async def main() -> None:
        driver = FaultDriver(parse_faults(script), recorder, **options)
        for number in range(4):
            driver.attach(f"peer-{number}")
        driver.start()
        await scene(driver)

    run_virtual(main())
    return recorder.done


def test_faults_at_times_begin_and_end() -> None:
    async def scene(driver: FaultDriver) -> None:
        await asyncio.sleep(100)

    done = drive(
        """
        stall peer-2 at 10s for 4s
        drop_link peer-1 peer-3 at 8s for 5s
        slow_link peer-1 to 80kbit at 5s for 1s
        lie peer-2 wrong-state at 3s for 1s
        kill peer-0 at 20s
        resume peer-2 at 21s
        restore_link peer-1 peer-3 at 22s
        stall peer-3
        """,
        scene,
    )
    assert done == [
        (0.0, "stall", "peer-3"),
        (3.0, "lie", "peer-2", "wrong-state"),
        (4.0, "lie", "peer-2", None),
        (5.0, "slow_link", "peer-1", 10_000.0),
        (6.0, "slow_link", "peer-1", None),
        (8.0, "drop_link", "peer-1", "peer-3"),
        (10.0, "stall", "peer-2"),
        (13.0, "restore_link", "peer-1", "peer-3"),
        (14.0, "resume", "peer-2"),
        (20.0, "kill", "peer-0"),
        (21.0, "resume", "peer-2"),
        (22.0, "restore_link", "peer-1", "peer-3"),
    ]


def test_an_event_triggers_once_and_only_if_all_fits() -> None:
    roles = {"leader": "peer-1", "aggregator": "peer-2"}

    async def scene(driver: FaultDriver) -> None:
        driver.on_event("peer-0", Event(0.0, "plan.resting", {"step": 2, "resting": True}))
        driver.on_event("peer-0", Event(0.0, "round.reduced", {"step": 3, "resting": True}))
        driver.on_event("peer-0", Event(0.0, "plan.resting", {"resting": True}))
        assert len(driver.pending) == 3
        await asyncio.sleep(1)
        driver.on_event("peer-3", Event(1.0, "plan.resting", {"step": 3, "resting": True}))
        await asyncio.sleep(1)
        roles["leader"] = "peer-3"
        for _ in range(2):
            driver.on_event("peer-3", Event(2.0, "plan.resting", {"step": 3, "resting": True}))
        assert len(driver.pending) == 1

    done = drive(
        """
        kill aggregator when plan.resting step=3 resting=true
        stall emitter when leader emits plan.resting step=3.0
        kill peer-0 when plan.resting step=x
        """,
        scene,
        resolve=lambda role, emitter, event: roles.get(role),
    )
    assert done == [(1.0, "kill", "peer-2"), (2.0, "stall", "peer-3")]


def test_a_role_that_nobody_has(caplog: pytest.LogCaptureFixture) -> None:
    async def scene(driver: FaultDriver) -> None:
        await asyncio.sleep(2)
        driver.on_event("peer-0", Event(2.0, "plan.resting", {}))
        assert [fault.peers for fault in driver.pending] == [("leader",), ("sender",), ("peer-1",)]
        driver.attach("sender")
        driver.on_event("peer-0", Event(2.0, "plan.resting", {}))

    done = drive("kill leader at 1s\nkill sender when plan.resting\nkill peer-1 at 3h", scene)
    assert done == [(2.0, "kill", "sender")]
    assert "skipped `kill leader at 1.0s`: nobody is leader" in caplog.text


def test_closing_undoes_and_ends() -> None:
    async def scene(driver: FaultDriver) -> None:
        with pytest.raises(ConfigurationError, match="only once"):
            driver.start()
        await asyncio.sleep(2)
        driver.close()
        driver.close()
        driver.on_event("peer-0", Event(2.0, "plan.resting", {}))
        await asyncio.sleep(100)

    done = drive("stall peer-1 at 1s for 9s\nkill peer-2 at 3s\nkill peer-3 when plan.resting", scene)
    assert done == [(1.0, "stall", "peer-1"), (2.0, "resume", "peer-1")]


@virtually
async def test_a_slow_link_makes_no_direction_faster() -> None:
    internet = VirtualInternet(1)
    line = internet.host(HostSettings(1_000.0, None)).state
    target = VirtualFaults(internet)
    for bytes_per_s, rates in ((5_000.0, (1_000.0, 5_000.0)), (200.0, (200.0, 200.0)), (None, (1_000.0, None))):
        target.do(Fault("slow_link", ("peer-0",), bytes_per_s=bytes_per_s), ("peer-0",))
        assert (line.up.rate, line.down.rate) == rates


def test_faults_outlast_a_restart_of_their_peer() -> None:
    async def main() -> None:
        swarm = Swarm(make_spec(16))
        slow = HostSettings(1e6, 1e6, nat=Nat.SYMMETRIC)
        for host in (slow, None, None):
            swarm.add(host)
        script = """
            slow_link peer-0 to 80kbit for 3s
            drop_link peer-0 peer-1 for 3s
            open_nat peer-0
            lie peer-1 false-rates
        """
        swarm.script(script)
        rates = swarm.peers["peer-1"].session.node.access_link.rates
        await asyncio.sleep(1)
        for name in ("peer-0", "peer-1"):
            swarm.internet.kill(name)
            swarm.restart(name)

        def found() -> tuple[float | None, bool, Nat]:
            one, other = (swarm.internet.hosts[name].state for name in ("peer-0", "peer-1"))
            return one.up.rate, swarm.internet.paths.may_leave(one, other), one.nat

        assert found() == (10_000.0, False, Nat.ONE_TO_ONE)
        line = swarm.peers["peer-1"].session.node.access_link
        assert line.rates.__qualname__ == rates.__qualname__ != type(line).rates.__qualname__, "it lies"
        await asyncio.sleep(3)
        assert found() == (1e6, True, Nat.ONE_TO_ONE)
        await swarm.close()

    run_virtual(main())
