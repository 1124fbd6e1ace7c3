"""A package of another author adds one plug-in for each seam, and runs use them."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

from minga.core.errors import ConfigurationError
from minga.core.spec.plugins import Origin
from minga.core.spec.run_spec import RunSpec
from minga.simulation.swarm.simulated_peer import SimulatedPeer
from minga.simulation.swarm.swarm import Swarm
from minga.testing import other_process
from minga.training.plugins_of_run import check_plugins
from tests.worlds import forked
from tests.worlds.extension_world import EXTRAS, RecipeReplica, hosted, install_extras, recipe_swarm
from tests.worlds.swarm_tools import later, virtually

PAGE = Path(__file__).parent.parent / "docs" / "extending.md"
ORIGIN = Origin(package="minga-extras", version="1.0")
TEXT = PAGE.read_text("utf-8")
BLOCKS = dict(re.findall(r"^```(?:python|toml) (\S+)\n((?:.*\n)*?)```$", TEXT, re.MULTILINE))
"""The files that the page shows, by their names."""
SECURE = tomllib.loads(BLOCKS["secure.toml"])


@pytest.fixture(autouse=True)
def _extras(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_extras(tmp_path, monkeypatch)


@pytest.mark.parametrize("seam", ["codec", "sketch", "strategy", "recipe", "aggregator"])
def test_each_plug_in_keeps_what_its_interface_promises(
    seam: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import check_extras

    monkeypatch.setattr(other_process, "subprocess", SimpleNamespace(run=forked.run_for_suite))
    folder = tmp_path / "empty"
    folder.mkdir()
    check = getattr(check_extras, f"test_{seam}")
    check(folder) if seam == "recipe" else check()


@virtually
async def test_runs_use_them_all() -> None:
    """Two runs, since a secure one takes no strategy but the usual one, and others have no aggregator to choose."""
    spec = hosted({**SECURE, "training": {**SECURE["training"], "stop_after_steps": 10}})
    assert RunSpec.from_toml(BLOCKS["secure.toml"] + BLOCKS["plugins.toml"]).plugins.items() <= spec.plugins.items()
    assert spec.plugins == dict.fromkeys(("codec:nibble", "recipe:corners", "aggregator:tight_clip"), ORIGIN)
    swarm = recipe_swarm(spec, {"p2": "freeloader"}, from_step=2)
    peers = [swarm.add(name=f"p{number}") for number in range(5)]
    await all_end(swarm, [peer for peer in peers if peer.name != "p2"], steps=10)
    banned = {str(event.fields["peer"]) for _, event in swarm.log.of("secure.banned")}
    assert banned == {peers[2].network.peer_id}
    await swarm.close()

    sections = tomllib.loads(BLOCKS["open.toml"])
    sections["training"]["stop_after_steps"] = 18
    spec = hosted(sections)
    assert spec.plugins == dict.fromkeys(("codec:nibble", "sketch:halves", "recipe:corners", "strategy:capped"), ORIGIN)
    swarm = recipe_swarm(spec, {}, from_step=0)
    await all_end(swarm, [swarm.add() for _ in range(3)], steps=18)
    await swarm.close()


@virtually
async def test_a_strategy_of_another_package_steps_on_each_peer_alone() -> None:
    """Peers whose parameters differ between rounds end in equal states, and so does one that joins meanwhile."""
    sections = tomllib.loads(BLOCKS["open.toml"])
    sections["training"]["strategy"] = "local_sgd"
    sections["averaging"], sections["strategy"] = {"codec": "float16"}, {}
    sections["training"]["stop_after_steps"] = 12
    spec = hosted(sections)
    assert spec.plugins["strategy:local_sgd"] == ORIGIN
    swarm = recipe_swarm(spec, {}, from_step=0)
    peers = [swarm.add() for _ in range(3)]
    spread = []

    def look() -> None:
        spread.append(len({float(peer.replica.read_values().sum()) for peer in peers}))
        if not peers[0].ended.is_set():
            later(0.05, look)

    look()
    await swarm.run_until_step(4, limit_s=300)
    peers.append(swarm.add())
    await all_end(swarm, peers, steps=12, least=0.0)
    assert max(spread) >= 3, "between rounds each has its own parameters"
    assert not swarm.log.of("member.diverged")
    await swarm.close()


async def all_end(swarm: Swarm, peers: list[SimulatedPeer], *, steps: int, least: float | None = None) -> None:
    """Wait until these peers have taken all steps; they are in one state, better than the first or than `least`."""
    replica = peers[0].replica
    assert isinstance(replica, RecipeReplica)
    before = replica.figures()["heldout_accuracy"] if least is None else least
    for peer in peers:
        await peer.ended.wait()
    assert [(peer.error, peer.replica.step) for peer in peers] == [(None, steps)] * len(peers)
    assert len(set(swarm.digests([peer.name for peer in peers]).values())) == 1
    assert replica.figures()["heldout_accuracy"] > max(0.7, before)


def test_peers_without_the_package_are_told_to_install_it() -> None:
    spec = hosted(SECURE)
    check_plugins(spec)
    other = spec.with_plugins(dict.fromkeys(spec.plugins, Origin(package="minga-extras", version="1.1")))
    with pytest.raises(
        ConfigurationError, match=r"(?s)codec: .*'nibble'.*aggregator: .*pip install minga-extras==1\.1"
    ):
        check_plugins(other)


def test_the_page_on_extending_shows_the_package_as_it_is() -> None:
    shown = {
        name.removeprefix("minga_extras/"): text for name, text in BLOCKS.items() if name.startswith("minga_extras/")
    }
    files = {
        str(file.relative_to(EXTRAS)): file.read_text("utf-8")
        for file in EXTRAS.rglob("*.*")
        if file.suffix != ".pyc" and file.is_file()
    }
    assert shown == {name: text for name, text in files.items() if name.endswith((".py", ".toml"))}
