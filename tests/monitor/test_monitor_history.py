"""History, losses and plots of the monitor."""

from __future__ import annotations

import errno
import json
import math
import threading
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minga.core.errors import ConfigurationError, StorageError
from minga.dashboard.model.run_model import RunModel
from minga.monitor import history as history_module
from minga.monitor.history import FILE_NAME, Entry, History, _halves, _lines_of, parse_entry, read_history, samples_in
from minga.monitor.plot import _by_step, _held_out, _samples_at, _with_holes, plot_history
from minga.network.interface import PeerId
from minga.training.record_kinds import Metrics
from minga.training.status.run_status import MAX_REMEMBERED, LossMeter

A, B = PeerId("aa" * 32), PeerId("bb" * 32)


def test_losses_are_differences_of_totals_weighted_by_samples() -> None:
    meter = LossMeter()
    assert meter.update({A: Metrics(5, 100.0, 800, 10), B: Metrics(5, 10.0, 100, 5)}) is None
    sample = meter.update({A: Metrics(6, 120.0, 880, 20), B: Metrics(6, 30.0, 100 + 240, 10)})
    assert sample is not None
    assert (sample.step, sample.samples) == (6, 320)
    assert sample.loss == pytest.approx((2.0 * 80 + 4.0 * 240) / 320)
    assert meter.smoothed == sample.loss
    assert meter.total_samples == 880 + 340
    assert meter.update({A: Metrics(6, 120.0, 880, 20)}) is None
    assert meter.total_samples == 880 + 340, "those who left are still counted"


def test_first_totals_count_for_who_saw_the_beginning() -> None:
    sample = LossMeter(from_start=True).update({A: Metrics(1, 18.0, 32, 2)})
    assert sample is not None
    assert sample.loss == 9.0


def test_the_smoothed_loss_is_as_fresh_however_rarely_one_looks() -> None:
    often, rarely = LossMeter(from_start=True), LossMeter(from_start=True)
    for step in range(1, 41):
        loss = 5.0 if step <= 10 else 3.0
        total = sum(5.0 if each <= 10 else 3.0 for each in range(1, step + 1))
        often.update({A: Metrics(step, total, 8 * step, step)})
        if step % 10 == 0:
            rarely.update({A: Metrics(step, total, 8 * step, step)})
    assert often.smoothed is not None
    assert rarely.smoothed == pytest.approx(often.smoothed, abs=0.01)
    assert rarely.smoothed == pytest.approx(loss, abs=0.01)


def test_a_peer_that_begins_anew_is_no_negative_loss() -> None:
    meter = LossMeter()
    meter.update({A: Metrics(5, 100.0, 800, 10)})
    sample = meter.update({A: Metrics(6, 8.0, 16, 1)})
    assert sample is not None
    assert (sample.loss, sample.samples) == (8.0, 16)
    assert meter.total_samples == 816


def test_another_process_of_a_peer_counts_from_nothing_though_it_has_larger_totals() -> None:
    meter = LossMeter(from_start=True)
    meter.update({A: Metrics(1, 20.0, 64, 2, since=1.7e9)})
    sample = meter.update({A: Metrics(9, 1.5, 96, 3, since=1.8e9)})
    assert sample is not None
    assert (sample.loss, sample.samples) == (0.5, 96)
    assert meter.total_samples == 160
    assert meter.update({A: Metrics(9, 1.5, 96, 3)}) is None, "an older version does not say which process it is"


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 1 << 40), st.integers(0, 1 << 40), st.floats(-1e18, 1e18))))
def test_any_totals_are_survived(totals: list[tuple[int, int, int, float]]) -> None:
    meter = LossMeter()
    for peer, samples, batches, loss in totals:
        sample = meter.update({PeerId(f"{peer:064x}"): Metrics(1, loss, samples, batches)})
        assert sample is None or (math.isfinite(sample.loss) and sample.samples > 0)


def test_memory_of_losses_is_bounded() -> None:
    meter = LossMeter()
    for number in range(MAX_REMEMBERED + 100):
        meter.update({PeerId(f"{number:064x}"): Metrics(1, 1.0, 2, 1)})
    assert meter.total_samples == 2 * (MAX_REMEMBERED + 100)
    assert len(meter._last) <= MAX_REMEMBERED + 1


def test_history_is_written_read_and_bounded(tmp_path: Path) -> None:
    path = tmp_path / "run" / FILE_NAME
    history = History(path, max_bytes=4000)
    for step in range(200):
        history.add(1000.0 + step, "step", step=step, loss=9.0, total_samples=step)
        assert sum(file.stat().st_size for file in path.parent.iterdir()) < 4200
    entries = read_history(path)
    assert entries[-1] == {"t": 1199.0, "event": "step", "step": 199, "loss": 9.0, "total_samples": 199}
    steps = [e["step"] for e in entries]
    assert steps[-10:] == list(range(190, 200))
    assert steps == sorted(set(steps))


def test_a_long_history_tells_of_the_whole_run_evenly(tmp_path: Path) -> None:
    path = tmp_path / FILE_NAME
    history = History(path, max_bytes=32_000)
    for step in range(5000):
        history.add(1000.0 + 6.0 * step, "step", step=step, loss=9.0, total_samples=step)
        history.add(1003.0 + 6.0 * step, "round", step=step)
    for kind in ("step", "round"):
        steps = [0, *(entry["step"] for entry in read_history(path) if entry["event"] == kind)]
        assert steps[-1] == 4999
        assert max(later - earlier for earlier, later in pairwise(steps)) <= 250


def test_a_disk_with_room_for_a_line_only_is_asked_for_a_new_half_now_and_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[Path] = []

    def refuse(path: Path, _: bytes) -> None:
        tried.append(path)
        raise OSError(errno.ENOSPC, "no room")

    history = History(tmp_path / FILE_NAME, max_bytes=64_000)
    with monkeypatch.context() as patch:
        patch.setattr(history_module, "write_atomically", refuse)
        for step in range(1500):  # of 40 bytes and more
            history.add(1000.0 + step, "step", step=step)
    assert 5 <= len(tried) <= 64
    for step in range(1500, 2000):
        history.add(1000.0 + step, "step", step=step)
    assert (tmp_path / FILE_NAME).stat().st_size <= 32_000


def test_rare_entries_outlast_frequent_ones_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / FILE_NAME
    history = History(path, max_bytes=4000)
    history.add(1000.0, "banned", peer=A)
    for step in range(200):
        history.add(1001.0 + step, "step", step=step)
    assert [entry["event"] for entry in read_history(path)[:2]] == ["banned", "step"]
    for step in range(400):
        history.add(2000.0 + step, "evaluation", step=step)
        assert sum(file.stat().st_size for file in tmp_path.iterdir()) < 4200
    assert read_history(path)[-1]["step"] == 399


def test_rare_entries_stay_at_the_samples_where_they_were(tmp_path: Path) -> None:
    path, model = tmp_path / FILE_NAME, RunModel()
    history = History(path, max_bytes=20_000)
    for step in range(1, 601):
        history.add(1000.0 + step, "step", step=step, loss=9.0, samples=10, total_samples=10 * step)
        if step % 60 == 0:
            history.add(1000.5 + step, "evaluation", step=step, headline="heldout_loss", heldout_loss=8.0)
            history.add(1000.7 + step, "banned", peer=f"{step:064x}")
        assert samples_in(path) == (step, 10 * step)
    entries = read_history(path)
    for entry in entries:
        model.take(entry)
    evaluations = [entry for entry in entries if entry["event"] == "evaluation"]
    places = [10 * step for step in range(60, 601, 60)]
    assert model.series["evaluation"].document()["columns"]["samples"] == places
    assert [mark["samples"] for mark in model.journals["marks"].document()["entries"]] == places
    assert _by_step([entry for entry in entries if entry["event"] == "step"], evaluations) == places
    assert _samples_at(entries)([entry["t"] for entry in evaluations]) == places


def test_a_run_that_was_set_back_hides_no_step(tmp_path: Path) -> None:
    path, older = tmp_path / FILE_NAME, tmp_path / f"{FILE_NAME}.1"
    history = History(path, max_bytes=20_000)
    step = 100
    while not older.exists():
        step += 1
        history.add(1e9 + step, "step", step=step, total_samples=10 * step)
    assert samples_in(path) == (step, 10 * step)
    step -= 99
    history.add(1e9 + step + 100, "step", step=step, total_samples=10 * step)
    assert samples_in(path) == (step, 10 * step)


def test_where_a_history_ends_is_known_also_after_the_clock_was_set_back_and_files_were_begun(tmp_path: Path) -> None:
    path = tmp_path / FILE_NAME
    history = History(path, max_bytes=20_000)
    for step in range(1, 601):
        history.add(1e9 + step - (86_400.0 if step > 200 else 0.0), "step", step=step, total_samples=10 * step)
        if step % 60 == 0:
            history.add(1e9, "banned", peer=A)
        assert samples_in(path) == (step, 10 * step)


def fill_first_half(history: History) -> None:
    for step in range(50):  # 2000 bytes and more
        history.add(1001.0 + step, "step", step=step)


def test_rare_entries_outlast_a_disk_that_is_full_when_the_file_begins_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no room")

    path = tmp_path / FILE_NAME
    history = History(path, max_bytes=4000)
    history.add(1000.0, "banned", peer=A)
    fill_first_half(history)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", refuse)
        for step in range(100):
            history.add(2000.0 + step, "step", step=step)
    for step in range(200):
        history.add(3000.0 + step, "step", step=step)
    assert read_history(path)[0]["event"] == "banned"


def test_rare_entries_outlast_a_kill_while_the_file_begins_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(path: Path, target: Path) -> Path:
        if path.suffix == ".new" and banned in path.read_bytes():
            raise KeyboardInterrupt
        return replace(path, target)

    path, replace, banned = tmp_path / FILE_NAME, Path.replace, b"banned"
    history = History(path, max_bytes=4000)
    history.add(1000.0, "banned", peer=A)
    fill_first_half(history)
    monkeypatch.setattr(Path, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        fill_first_half(history)
    monkeypatch.undo()
    assert not path.exists()
    History(path, max_bytes=4000).add(3000.0, "step", step=200)
    assert read_history(path)[0]["event"] == "banned"


def test_two_threads_begin_the_file_anew_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / FILE_NAME
    history = History(path, max_bytes=4000)
    fill_first_half(history)
    other = threading.Thread(target=history.add, args=(5000.0, "evaluation"))
    begin_anew, begun = history._begin_anew, list[Path]()

    def meanwhile(path: Path) -> None:
        begun.append(path)
        if len(begun) == 1:
            other.start()
            other.join(0.1)  # it waits for this thread
        begin_anew(path)

    monkeypatch.setattr(history, "_begin_anew", meanwhile)
    for step in range(60):
        history.add(2000.0 + step, "step", step=step)
    other.join()
    assert begun == [path]
    assert [entry["step"] for entry in read_history(path) if entry["t"] >= 2000.0 and "step" in entry] == [*range(60)]


@pytest.mark.parametrize("count", [60, 240])  # in a first half, and in a third one
def test_who_opens_the_files_while_one_begins_anew_opens_them_again(
    count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, steps, open_file = tmp_path / FILE_NAME, iter(range(1000)), Path.open
    history = History(path, max_bytes=8000)

    def add() -> None:
        step = next(steps)
        history.add(1000.0 + step, "step", step=step, total_samples=step)

    def overtaken(older: Path, mode: str) -> Any:
        monkeypatch.setattr(Path, "open", open_file)
        try:
            return older.open(mode)
        finally:
            begun = path.stat().st_ino
            while path.stat().st_ino == begun:
                add()

    for _ in range(count):
        add()
    before = {json.loads(line)["step"] for line in path.read_bytes().splitlines()}
    monkeypatch.setattr(Path, "open", overtaken)
    assert before <= {entry["step"] for entry in read_history(path)}


def test_who_reads_while_the_file_begins_anew_reads_each_entry_once(tmp_path: Path) -> None:
    path = tmp_path / FILE_NAME
    history = History(path, max_bytes=8000)
    for step in range(240):  # of 50 bytes: the last ones are in a third half
        history.add(1000.0 + step, "step", step=step, total_samples=step)
    before, half = read_history(path), path.with_name(f"{FILE_NAME}.1").read_bytes()
    reading = _lines_of(*_halves(path))
    lines = [next(reading)]
    for step in range(240, 400):
        history.add(1000.0 + step, "step", step=step, total_samples=step)
        if path.with_name(f"{FILE_NAME}.1").read_bytes() != half:
            break
    found = sorted((json.loads(line.text) for line in [*lines, *reading]), key=lambda each: float(each["t"]))
    assert found == [
        *before,
        *({**before[-1], "t": 1000.0 + n, "step": n, "total_samples": n} for n in range(240, step + 1)),
    ]


def test_a_file_begins_anew_without_being_parsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever writes waits for it: for a half of 32 MiB three times as long if each line were parsed."""
    path, parsed = tmp_path / FILE_NAME, list[bytes]()
    history = History(path, max_bytes=40_000)
    monkeypatch.setattr(history_module, "parse_entry", lambda line: parsed.append(line) or parse_entry(line))  # type: ignore[func-returns-value]
    for step in range(2000):
        history.add(1000.0 + step, "step", step=step, total_samples=step)
    assert path.with_name(f"{FILE_NAME}.1").exists()
    assert len(parsed) <= 100


def test_what_is_not_remembered_is_told_and_written_all_the_same(tmp_path: Path) -> None:
    told: list[Entry] = []
    history = History(tmp_path / FILE_NAME, most_remembered=0)
    history.listeners.append(told.append)
    for step in range(3):
        history.add(1000.0 + step, "step", step=step)
    assert history.entries == []
    assert [e["step"] for e in told] == [e["step"] for e in read_history(tmp_path / FILE_NAME)] == [0, 1, 2]


def test_damaged_lines_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / FILE_NAME
    good = json.dumps({"t": 1.0, "event": "joined", "peer": A})
    bad = ["{", "[]", "7", '{"event": "x"}', '{"t": "1", "event": "x"}', '{"t": NaN, "event": "x"}', "[" * 100_000]
    path.write_text("\n".join([*bad, good, '{"t": true, "event": "x"}', good[:-5]]))
    assert read_history(path) == [{"t": 1.0, "event": "joined", "peer": A}]


def test_nothing_to_read(tmp_path: Path) -> None:
    for content in (None, b"", b"\x00\xff" * 50):
        path = tmp_path / "h.jsonl"
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(ConfigurationError, match=r"no history of a run"):
            read_history(path)
    with pytest.raises(ConfigurationError, match="cannot be read"):
        read_history(tmp_path)


def test_history_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="cannot be made"):
        History(tmp_path / "file" / FILE_NAME)


def test_a_disk_that_is_full_for_a_moment_ends_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / FILE_NAME
    history = History(path)
    history.add(1.0, "joined", peer=A)
    for refusals in (1, 2):
        history.path = tmp_path  # a folder takes no lines
        history.add(2.0, "joined", peer=B)
        history.add(3.0, "left", peer=B)
        history.path = path
        with path.open("ab") as file:
            file.write(b'{"t": 2.0, "ev')  # what fitted
        history.add(3.0 + refusals, "left", peer=A)
        assert len(caplog.records) == refusals, "once for each time"
    assert f"no history is kept while {tmp_path} cannot be written" in caplog.text
    assert [entry["t"] for entry in read_history(path)] == [1.0, 4.0, 5.0]
    assert len(history.entries) == 7


def test_half_a_line_of_a_killed_process_swallows_no_entry(tmp_path: Path) -> None:
    path = tmp_path / FILE_NAME
    path.write_bytes(b'{"t": 1.0, "ev')
    history = History(path)
    history.add(2.0, "banned", peer=A)
    history.add(3.0, "left", peer=A)
    assert [entry["t"] for entry in read_history(path)] == [2.0, 3.0]
    assert b"\n\n" not in path.read_bytes()


def entries() -> list[dict[str, object]]:
    return [
        {"t": 0.0, "event": "joined", "peer": A},
        {"t": 1.0, "event": "step", "step": 1, "loss": 9.0, "total_samples": 32},
        {"t": 2.0, "event": "evaluation", "step": 1, "headline": "heldout_loss", "heldout_loss": 9.1},
        {"t": 3.0, "event": "lost", "peer": A},
        {"t": 4.0, "event": "step", "step": 2, "loss": 8.0, "total_samples": 64},
        {"t": 5.0, "event": "left", "peer": B},
        {"t": 6.0, "event": "step", "step": 3, "loss": "broken", "total_samples": None},
    ]


def test_plot(tmp_path: Path) -> None:
    path = tmp_path / "new" / "loss.png"
    plot_history(entries(), path, title="a $run$ with _signs_")
    assert path.read_bytes().startswith(b"\x89PNG")
    assert [file.name for file in path.parent.iterdir()] == ["loss.png"]


def test_a_plot_looks_at_each_entry_a_few_times_however_long_the_history_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[str] = []

    def number_in(fields: Entry, name: str) -> float | None:
        looks.append(name)
        return fields.get(name)

    monkeypatch.setattr("minga.monitor.plot.number_in", number_in)
    template, joined = entries()[1], entries()[0]
    steps = [{**template, "t": float(k), "step": k, "total_samples": 32 * k} for k in range(200)]
    marks = [{**joined, "t": k + 0.5} for k in range(200)]
    plot_history([*steps, *marks], tmp_path / "loss.png")
    assert len(looks) <= 5 * len([*steps, *marks])


def test_samples_at_a_moment_are_the_most_that_were_told_before() -> None:
    told = [{"t": 3.0, "total_samples": 64}, {"t": 1.0, "total_samples": 96}, {"t": 5.0, "total_samples": None}]
    assert _samples_at(told)([0.5, 1.0, 2.0, 3.0, 9.0]) == [0.0, 96.0, 96.0, 96.0, 96.0]


def test_an_evaluation_stands_at_the_samples_of_its_step() -> None:
    """A host that came back evaluates before it hears of the samples of the steps that it missed."""
    steps = [entries()[1], {**entries()[4], "step": 11, "total_at": 11, "total_samples": 1032}]
    assert _by_step(steps, [{**entries()[2], "step": 6}, {**entries()[2], "step": 0}]) == [532.0, 0.0]
    assert _by_step([], [entries()[2]]) == [0.0]
    model = RunModel()
    for entry in (entries()[1] | {"samples": 100}, entries()[2] | {"step": 6}):
        model.take(entry)
    assert model.series["evaluation"].document()["columns"]["samples"] == [532.0]


def test_a_headline_that_is_no_loss_is_drawn_beside_the_held_out_loss(tmp_path: Path) -> None:
    figures = {"heldout_swav_loss": 5.0, "heldout_probe_accuracy": 0.7}
    evaluation = {"t": 2.5, "event": "evaluation", "step": 1, "headline": "heldout_probe_accuracy", **figures}
    assert _held_out([evaluation]) == ("heldout_probe_accuracy", "heldout_swav_loss")
    assert _held_out([entries()[2]]) == ("heldout_loss", "heldout_loss")
    assert _held_out([{**evaluation, "heldout_loss": 1.0}])[1] == "heldout_loss"
    assert _held_out([]) == ("", "")
    for shown in ([evaluation], [{k: v for k, v in evaluation.items() if "loss" not in k}]):
        plot_history([*shown, entries()[4]], tmp_path / "loss.png")
        assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")


def test_plots_that_cannot_be_drawn(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"ends in \.png"):
        plot_history(entries(), tmp_path / "loss.pdf")
    with pytest.raises(ConfigurationError, match="no loss to draw"):
        plot_history(entries()[:1], tmp_path / "loss.png")
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="cannot be written"):
        plot_history(entries(), tmp_path / "file" / "loss.png")


def test_where_nobody_looked_the_curve_has_a_hole() -> None:
    watched = [float(second) for second in range(50)]
    assert _with_holes(watched) == watched
    assert _with_holes([*watched, 349.0, 350.0]) == [*watched, 199.0, 349.0, 350.0]
    slow = [600.0 * step for step in range(20)]
    assert _with_holes(slow) == slow, "steps of ten minutes are none"
    assert _with_holes([]) == []
