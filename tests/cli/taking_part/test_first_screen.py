"""What `minga join` shows of a run before it downloads anything large."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import typer

import minga
from minga.averaging.planning.contributor_choice import StepWork
from minga.averaging.solver.division import PeerRates, SwarmRates
from minga.cli.commands import JoinCommand
from minga.cli.diagnosing.hops import packages
from minga.cli.taking_part import first_screen
from minga.cli.taking_part.first_screen import Costs, costs_of, lines, require_recipe, show_and_ask
from minga.cli.terminal.output import Output
from minga.core.errors import ConfigurationError
from minga.core.spec.run_spec import RunSpec
from minga.keeping.availability import TrafficLimit
from minga.network.probing import MAX_PHASE_BYTES
from minga.recipes.registry import published
from minga.training.prospect import Prospect
from minga.training.status.run_status import LiveRates
from tests.worlds.cli_run import ALONE, GENESIS, SPEC, Running, last_json, run
from tests.worlds.organiser_desk import desk_in

WORK = JoinCommand(device="cpu", threads=1)
AGREED = replace(WORK, yes=True)
MBIT = 1e6 / 8
NOBODY = LiveRates((), SwarmRates(()), 0)
TWO = LiveRates(("a" * 64, "b" * 64), SwarmRates((PeerRates(50 * MBIT, 50 * MBIT, 10.0),) * 2), 4_000_000)


def prospect(live: LiveRates = NOBODY, text: str = SPEC) -> Prospect:
    work = StepWork(live.vector_bytes, 256)
    return Prospect("ab" * 32, "cd" * 32, published(RunSpec.from_toml(text)), live, work)


def test_costs_are_those_of_the_plan_with_this_machine_in_it() -> None:
    costs = costs_of(prospect(TWO), minga.PeerOptions(max_upload="8Mbit"), WORK)
    assert (costs.name, costs.recipe, costs.peers, costs.capped) == ("tiny", "albert", 2, True)
    assert costs.parameters is not None
    assert costs.download_bytes == costs.parameters * 12, "no files; parameters and two moments"
    assert costs.upload == pytest.approx(8 * MBIT)
    # A step takes 256 / 20 s and a little; this machine sends at least its own vector, and receives the means.
    assert costs.upload_per_day is not None
    assert costs.download_per_day is not None
    most_steps = 86_400 / (256 / 20)
    for per_day in (costs.upload_per_day, costs.download_per_day):
        assert 0.5 * most_steps * 4e6 < per_day <= 2.0 * most_steps * 4e6
    text = "\n".join(lines(costs))
    assert "organiser's key cdcdcdcdcd; 2 peers take part now" in text
    assert "with your limit, 8 Mbit/s up" in text


def test_a_disk_with_too_little_room_is_said_before_the_question(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small, asked = tmp_path / "small", list[Path]()

    def usage(folder: Path) -> SimpleNamespace:
        asked.append(folder)
        return SimpleNamespace(free=1000 if folder == tmp_path else 1 << 40)

    monkeypatch.setattr("shutil.disk_usage", usage)
    text = "\n".join(lines(costs_of(prospect(), minga.PeerOptions(directory=small), WORK)))
    assert asked == [tmp_path], "the disk of the folder that is named"
    assert "checkpoints will fail" in text
    assert "--directory" in text
    assert "checkpoints will fail" not in "\n".join(lines(costs_of(prospect(), minga.PeerOptions(), WORK)))


def test_data_that_come_beside_the_counted_traffic_are_told() -> None:
    of_hub = SPEC.replace('source = "files"', 'source = "datasets"').replace(f"files = ['{GENESIS}']", 'name = "some"')
    streamed = prospect(text=of_hub)
    limit = TrafficLimit.parse("50GB/month")
    said = "Training data come from the hub"
    assert said in "\n".join(lines(costs_of(streamed, minga.PeerOptions(), WORK, limit)))
    assert said not in "\n".join(lines(costs_of(streamed, minga.PeerOptions(role="auxiliary"), WORK, limit)))
    assert said not in "\n".join(lines(costs_of(prospect(), minga.PeerOptions(), WORK, limit)))


def test_what_is_not_known_yet_is_not_made_up() -> None:
    text = "\n".join(lines(costs_of(prospect(), minga.PeerOptions(), WORK)))
    assert "Traffic: not known yet; status shows it later" in text
    assert "No limit is set" in text
    limited = costs_of(prospect(), minga.PeerOptions(), WORK, TrafficLimit.parse("50GB/month"))
    assert "At most 50 GB a month" in "\n".join(lines(limited))
    own = "name = 'own'\n[model]\nrecipe = 'custom'\n"
    costs = costs_of(prospect(TWO, own), minga.PeerOptions(role="monitor"), WORK)
    assert (costs.parameters, costs.download_bytes, costs.upload_per_day, costs.device) == (None, None, None, "none")
    assert "of a size that the organiser's program knows" in lines(costs)[0]


@pytest.mark.parametrize("variant", ["u-shaped", "splitfed-1"])
def test_a_client_of_a_cut_model_gets_its_part_at_most_and_chooses_its_batch(variant: str) -> None:
    text = f'name = "x"\n[model]\nrecipe = "split"\n[split]\nvariant = "{variant}"\n'
    costs = costs_of(prospect(TWO, text), minga.PeerOptions(), replace(WORK, micro_batch=100_000))
    assert costs.parameters is not None
    assert costs.download_bytes == (costs.parameters * 12 if variant == "splitfed-1" else 0)
    assert costs.upload_per_day is None, "the plan of a whole model knows no activations"


def test_the_probe_of_the_line_is_told_with_what_the_start_takes() -> None:
    def told(peer: minga.PeerOptions, limit: TrafficLimit | None = None) -> tuple[Costs, str]:
        costs = costs_of(prospect(TWO), peer, WORK, limit)
        return costs, "\n".join(lines(costs))

    costs, text = told(minga.PeerOptions())
    assert costs.probe_upload_bytes == costs.probe_download_bytes == MAX_PHASE_BYTES
    assert "at most 67.1 MB up and 67.1 MB down each time, and at most 2.15 GB a day" in text
    costs, text = told(minga.PeerOptions(max_upload="8Mbit"))
    assert (costs.probe_upload_bytes, costs.probe_download_bytes) == (800_000, MAX_PHASE_BYTES)
    assert "at most 800 kB up and 67.1 MB down" in text
    costs, text = told(minga.PeerOptions("monitor"))
    assert costs.probe_upload_bytes == costs.probe_download_bytes == 0
    assert "measure this line" not in text
    costs, text = told(minga.PeerOptions(), TrafficLimit.parse("100MB/day"))
    assert (costs.probe_upload_bytes, costs.start_bytes) == (0, costs.download_bytes)
    assert "measure this line" not in text, "that would take more than this budget"


def test_a_budget_is_told_in_steps_and_time() -> None:
    def told(limit: str) -> tuple[Costs, str]:
        costs = costs_of(prospect(TWO), minga.PeerOptions(), WORK, TrafficLimit.parse(limit))
        return costs, "\n".join(lines(costs))

    costs, text = told("50GB/month")
    assert costs.limit_days is not None
    assert costs.limit_steps is not None
    assert costs.upload_per_day is not None
    assert costs.download_per_day is not None
    starts = costs.start_bytes / (50e9 / 30)
    a_day = costs.upload_per_day + costs.download_per_day
    assert costs.limit_days == pytest.approx((1 - starts) * 50e9 / a_day, rel=0.01)
    assert costs.limit_steps / costs.limit_days == pytest.approx(86_400 / (256 / 20), rel=0.2)
    assert f"about {costs.limit_steps:,} steps, or 22 h " in text
    _, small = told("200MB/day")
    assert "steps, or" in small


def test_a_budget_with_which_no_step_can_follow_the_start_is_refused_with_the_smallest_that_makes_sense() -> None:
    output = Output(json_output=False)

    def ask(limit: str, peer: minga.PeerOptions) -> None:
        show_and_ask(prospect(), peer, AGREED, output, max_files=2**31, limit=TrafficLimit.parse(limit))

    with pytest.raises(ConfigurationError, match=r"takes 105 kB, so .* never train with 200 kB a day: .* 500kB/day"):
        ask("200KB/day", minga.PeerOptions())
    ask("500kB/day", minga.PeerOptions())
    ask("1KB/day", minga.PeerOptions("monitor"))


@pytest.mark.parametrize(
    ("work", "said"),
    [
        (JoinCommand(device="banana"), "--device banana: PyTorch has no device of this name; choose auto, cpu,"),
        (JoinCommand(device="cuda"), "--device cuda: "),
        (JoinCommand(device="cpu", precision="float8"), "--precision float8: choose"),
        (
            JoinCommand(device="cpu", micro_batch=65),
            "--micro-batch 65: it must be from 1 to the run's target batch size, 64",
        ),
    ],
)
def test_what_this_machine_cannot_do_is_said_before_it_agrees(work: JoinCommand, said: str) -> None:
    if work.device == "cuda" and torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(ConfigurationError) as refused:
        show_and_ask(prospect(), minga.PeerOptions(), work, Output(json_output=False), max_files=2**31)
    assert str(refused.value).startswith(said)
    if work.device == "cuda" and torch.version.cuda is None:
        assert "install another one" in str(refused.value)


def test_a_micro_batch_without_room_in_memory_is_said_before_it_agrees(monkeypatch: pytest.MonkeyPatch) -> None:
    def ask() -> None:
        work = JoinCommand(device="cpu", micro_batch=64, yes=True)
        show_and_ask(prospect(), minga.PeerOptions(), work, Output(json_output=False), max_files=2**31)

    ask()
    for here, advice in ((20_500_000, "20.5 MB; choose at most [1-9]"), (18_000_000, "18 MB; that is too little")):
        monkeypatch.setattr(first_screen, "total_memory", lambda _, here=here: here)
        with pytest.raises(ConfigurationError, match=rf"--micro-batch 64: .* of memory, and here are {advice}"):
            ask()


@pytest.mark.parametrize(("answer", "yes", "taken"), [(True, False, True), (False, False, False), (None, True, True)])
def test_on_a_terminal_the_owner_is_asked_once(
    answer: bool | None, yes: bool, taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = Output(json_output=False)
    output.interactive = True
    monkeypatch.setattr(sys, "stdin", type("Terminal", (), {"isatty": lambda _: True})())
    asked: list[str] = []

    def confirm(question: str, **_: object) -> bool:
        asked.append(question)
        assert answer is not None
        return answer

    monkeypatch.setattr(typer, "confirm", confirm)
    if taken:
        show_and_ask(prospect(), minga.PeerOptions(), replace(WORK, yes=yes), output, max_files=2**31)
    else:
        with pytest.raises(typer.Exit):
            show_and_ask(prospect(), minga.PeerOptions(), replace(WORK, yes=yes), output, max_files=2**31)
    assert len(asked) == (not yes)


@pytest.mark.parametrize(("yes", "at_stdin"), [(False, False), (False, True), (True, False)])
def test_without_a_terminal_it_goes_on_and_says_so(
    yes: bool, at_stdin: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    output = Output(json_output=False)
    output.interactive = not at_stdin
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: at_stdin))
    monkeypatch.setattr(typer, "confirm", lambda *_, **__: pytest.fail("nobody is there to answer"))
    show_and_ask(prospect(), minga.PeerOptions(), replace(WORK, yes=yes), output, max_files=2**31)
    assert ("There is no terminal to ask, so this machine takes part." in capsys.readouterr().out) is not yes


CHECKED = SPEC + '[security]\nverification = "byzantine"\nmicro_batch_size = 8\n'


@pytest.mark.parametrize(
    ("text", "given", "said"),
    [
        (SPEC, {"data": ("none.txt",)}, "--data: no file matches 'none.txt'"),
        (SPEC, {"data": (__file__,)}, r"must end in \.txt or \.jsonl"),
        (CHECKED, {"data": (str(GENESIS),)}, "all train on the same data"),
        (CHECKED, {"compiled": True}, "all compute in the same order"),
    ],
)
def test_own_data_that_the_run_does_not_take_is_refused_before_anything_is_agreed(
    text: str, given: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigurationError, match=said):
        costs_of(prospect(text=text), minga.PeerOptions(), replace(WORK, **given))


def test_a_recipe_that_is_not_here_is_named_before_anything_else_by_join_and_doctor() -> None:
    values = {"name": "x", "model": {"recipe": "corners"}, "recipe": {"corners": {"hidden": 8}}}
    origin = {"recipe:corners": {"package": "minga-extras", "version": "1.0"}}
    spec = RunSpec.from_mapping({**values, "plugins": origin})
    with pytest.raises(ConfigurationError, match=r"pip install minga-extras==1\.0"):
        require_recipe(spec)
    _, ok, detail, advice = packages(spec)
    assert (ok, "pip install minga-extras==1.0" in detail, "trust" in advice) == (False, True, True)
    with pytest.raises(ConfigurationError, match="the organiser's own"):
        require_recipe(RunSpec.from_toml("name = 'own'\n[model]\nrecipe = 'custom'\n"))
    require_recipe(published(RunSpec.from_toml(SPEC)))


def test_a_run_with_larger_files_than_this_machine_takes_is_declined_before_they_come() -> None:
    own = RunSpec.from_toml("name = 'own'\n[model]\nrecipe = 'custom'\n").model_dump(mode="json")
    entry = {"blake3": "0" * 64, "size_bytes": 5 << 30, "pieces": "1" * 64}
    spec = RunSpec.from_mapping({**own, "files": {"a": entry, "b": entry}})
    large = replace(prospect(), spec=spec)
    output = Output(json_output=False)
    output.interactive = False
    with pytest.raises(ConfigurationError, match=r"10.7 GB, more than the 2 GB .*--max-files 11GB allows it"):
        show_and_ask(large, minga.PeerOptions(role="monitor"), AGREED, output, max_files=2e9)
    show_and_ask(large, minga.PeerOptions(role="monitor"), AGREED, output, max_files=11e9)


def test_files_that_are_here_already_are_no_cost(tmp_path: Path) -> None:
    entry = {"blake3": "0" * 64, "size_bytes": 1 << 20, "pieces": "1" * 64}
    shown = published(RunSpec.from_toml(SPEC)).model_dump(mode="json")
    spec = RunSpec.from_mapping({**shown, "files": {"a": entry, "b": entry}})
    peer = minga.PeerOptions(directory=tmp_path / "runs")
    first = costs_of(replace(prospect(), spec=spec), peer, WORK)
    kept = peer.run_directory("ab" * 32) / "files"
    kept.mkdir(parents=True)
    (kept / "a").write_bytes(bytes(1 << 20))
    back = costs_of(replace(prospect(), spec=spec), peer, WORK)
    assert (first.files_bytes, back.files_bytes) == (2 << 20, 1 << 20)
    assert first.download_bytes is not None is not first.disk_bytes
    assert (back.download_bytes, back.disk_bytes) == (first.download_bytes - (1 << 20), first.disk_bytes - (1 << 20))


def test_a_program_sees_the_run_before_its_files_and_may_decline(tmp_path: Path) -> None:
    seen: list[Prospect] = []

    class DeclinedError(Exception):
        pass

    def decline(shown: Prospect) -> None:
        seen.append(shown)
        raise DeclinedError

    options = minga.PeerOptions("monitor", ephemeral=True, directory=tmp_path / "host", host="127.0.0.1")
    (tmp_path / "large").write_bytes(bytes(3 << 20) + b"end")
    files = {"big": b"x", "large": tmp_path / "large"}
    with minga.host(
        minga.RunSpec(name="seen", model={"recipe": "custom"}, state={"founder": "first"}), options, files=files
    ) as host:
        joining = minga.PeerOptions("monitor", ephemeral=True, directory=tmp_path / "guest", host="127.0.0.1")
        with pytest.raises(DeclinedError):
            minga.join(host.link, joining, consider=decline)
        (shown,) = seen
        assert (shown.run_id, shown.organiser, shown.live.peers) == (host.run_id, host.peer_id, ())
        assert not list((tmp_path / "guest").rglob("big"))
        with minga.join(host.link, joining, consider=seen.append) as guest:
            assert guest.files["big"].read_bytes() == b"x"
            assert guest.files["large"].read_bytes() == bytes(3 << 20) + b"end"


@pytest.mark.timeout(150)
def test_who_comes_after_the_last_step_is_told_so_and_how_to_get_the_model(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(SPEC.replace("stop_after_steps = 500", "stop_after_steps = 2"))
    folder = ("--directory", str(tmp_path / "guest"))
    with Running(
        "host", str(tmp_path / "run.toml"), *ALONE, "--role", "trainer", "--directory", str(tmp_path / "host")
    ) as host:
        link = host.wait_for("link")["link"]
        host.wait_for("run.finished")
        late = run("join", link, *ALONE, *folder)
        assert late.returncode == 0
        assert "tiny is complete: step 2 was its last one. There is nothing to contribute" in late.stdout
        assert f"minga export {link} --out model" in late.stdout
        assert "Thank you" not in late.stdout
        assert "Traffic" not in late.stdout
        last = last_json(run("join", link, *ALONE, *folder, "--json").stdout)
        assert (last["ok"], last["finished"], last["step"], last["samples"]) == (True, True, 2, 0)


def test_who_declines_for_now_is_not_asked_to_log_in_again(tmp_path: Path) -> None:
    """The owner agrees while the rules of the machine keep it out: what was shown at the door serves the next time."""

    class LaterError(Exception):
        pass

    def not_now(_: Prospect) -> None:
        raise LaterError

    spec = minga.RunSpec.from_mapping(
        {"name": "kept", "model": {"recipe": "custom"}, "security": {"admission": "members"}}
    )

    def options(name: str) -> minga.PeerOptions:
        return minga.PeerOptions(identity=tmp_path / f"{name}.json", directory=tmp_path / name, host="127.0.0.1")

    with minga.host(spec, options("host")) as host:
        invited = desk_in(host).invite(1, 3600.0)
        with pytest.raises(LaterError):
            minga.join(invited, options("guest"), consider=not_now)
        with minga.join(host.link, options("guest")) as guest:
            assert guest.run_id == host.run_id
