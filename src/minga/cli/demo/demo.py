"""`minga demo`: an organiser and several trainers as processes on this machine, with a death and a late arrival.

start ── train ──────────────┬── train ────────┬── train ─────────────────── end ── compare digests, plot, summary
         all trainers        │ a third: one is │ a half: a newcomer joins
                             │ killed          │ and downloads the state
"""

from __future__ import annotations

import importlib.resources
import queue
import shutil
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minga.cli.demo.child import Child
from minga.cli.demo.picture import draw_terminal
from minga.cli.demo.report import DemoFacts, check, in_words, normal_step_s
from minga.cli.demo.results import keep_results
from minga.cli.terminal.interrupt import Interruption
from minga.cli.terminal.output import Output
from minga.core.errors import ConfigurationError, LocalError, StorageError
from minga.core.files import write_atomically
from minga.core.spec.run_spec import RunSpec
from minga.recipes.interface import Recipe
from minga.recipes.registry import RECIPES, USUAL_RECIPE

SETUP_LIMIT_S = 180.0
GOODBYE_LIMIT_S = 20.0
GRACE_S = 0.2
"""How long children may take to end by themselves when the demo is broken off; Ctrl-C has to work within a second."""

MICRO_BATCH = 8
PROGRESS_PERIOD_S = 10.0
STEPS_TO_THE_END = 2
"""How many steps ahead the common last step is chosen, so that every peer hears of it before."""


@dataclass(frozen=True)
class DemoOptions:
    """`minutes` of training, counted from the first step of all `peers` trainers together."""

    minutes: float = 3.0
    peers: int = 3
    recipe: str = USUAL_RECIPE
    directory: Path | None = None


def run_demo(options: DemoOptions, output: Output, interruption: Interruption) -> int:
    """Run the demo; the exit code is 1 if something did not come out as promised."""
    recipe = RECIPES.get(options.recipe)
    directory = _result_directory(options.directory)
    demo = _Demo(options, recipe, directory, output)
    interruption.on_interrupt(demo.abandon)
    try:
        facts = demo.run()
        summary = check(facts, options.minutes, options.peers)
        summary["results"] = keep_results(facts, directory)
        _write_summary(directory, summary)
    finally:
        demo.abandon()
        shutil.rmtree(directory / "peers", ignore_errors=True)
    words = list(in_words(facts, summary, directory))
    for line in words:
        output.say(line)
    shown = [*demo.told, *(line.replace(str(directory), directory.name) for line in words)]
    named = "" if options.recipe == USUAL_RECIPE else f" --recipe {options.recipe}"
    draw_terminal(f"minga demo{named} --minutes {options.minutes:g}", shown, directory / "terminal.svg")
    output.summary(**summary)
    return 0 if summary["ok"] else 1


class _Demo:
    """One demo. Times are Unix times, since they are compared with those that the children report."""

    def __init__(self, options: DemoOptions, recipe: type[Recipe[Any]], directory: Path, output: Output) -> None:
        self.options, self.recipe, self.directory, self.output = options, recipe, directory, output
        self.inbox: queue.Queue[tuple[Child, Any]] = queue.Queue()
        self.children: list[Child] = []
        self.killed: Child | None = None
        self.begun = time.time()
        self.told: list[str] = []

    def run(self) -> DemoFacts:
        """All acts of the play."""
        organiser, link = self._start_organiser()
        trainers = [self._start_trainer(f"trainer {n}", link) for n in range(1, self.options.peers + 1)]
        self._until(lambda: all(t.first("step.applied") for t in trainers), "the trainers have taken a step together")
        self.begun = time.time()
        length_s = 60.0 * self.options.minutes
        self._tell(f"{len(trainers)} trainers and the organiser have taken their first steps together.")
        self._watch(organiser, self.begun + length_s / 3)
        victim = trainers[-1]
        normal_s = normal_step_s(trainers[0].steps())
        self.killed, kill_time = victim, time.time()
        victim.kill()
        self._tell(f"{victim.name} was killed (SIGKILL), without a goodbye.", killed=victim.name)
        self._watch(organiser, self.begun + length_s / 2)
        self._tell("A newcomer starts, with nothing but the link.")
        newcomer = self._start_trainer("newcomer", link)
        self._watch(organiser, self.begun + length_s, newcomer=newcomer)
        last_step = self._finish(organiser)
        left_over = self._wait_for_goodbyes()
        return DemoFacts(
            recipe=self.recipe,
            organiser=organiser,
            survivors=[*trainers[:-1], newcomer],
            newcomer=newcomer,
            killed=victim,
            kill_time=kill_time,
            normal_step_s=normal_s,
            last_step=last_step,
            left_over=left_over,
            seconds=time.time() - self.begun,
        )

    def abandon(self) -> None:
        """End whatever still runs; safe to call at any time and from any thread."""
        for child in self.children:
            child.let_go()
        deadline = time.monotonic() + GRACE_S
        for child in self.children:
            if not child.wait(max(0.0, deadline - time.monotonic())):
                child.kill()

    # ---- acts

    def _start_organiser(self) -> tuple[Child, str]:
        self._tell("The organiser prepares the data …")
        spec = self.directory / "run.toml"
        spec.write_text(demo_run(self.options.recipe, self.recipe).to_toml(), "utf-8")
        organiser = self._start("organiser", ["host", str(spec)])
        self._until(lambda: organiser.first("link") is not None, "the organiser has a link")
        event = organiser.first("link") or {}
        self._tell(
            f"The organiser hosts run {str(event['run_id'])[:10]} and has a link of {len(event['link'])} letters."
        )
        return organiser, str(event["link"])

    def _start_trainer(self, name: str, link: str) -> Child:
        own_choice = ["--micro-batch", str(MICRO_BATCH)] if self.recipe.coupling == "none" else []
        child = self._start(name, ["join", link, *own_choice])
        if name != "newcomer":
            child.step_back()
        return child

    def _start(self, name: str, arguments: list[str]) -> Child:
        slug = name.replace(" ", "-")
        own = ["--directory", str(self.directory / "peers" / slug), "--host", "127.0.0.1"]
        own += ["--ephemeral", "--device", "cpu", "--threads", "1", "--leash", "--json"]
        child = Child(name, [*arguments, *own], self.directory / "logs" / f"{slug}.jsonl", self.inbox)
        self.children.append(child)
        return child

    def _watch(self, organiser: Child, until: float, newcomer: Child | None = None) -> None:
        """Let them train, and tell now and then how it goes."""
        told = time.monotonic()
        while (left := until - time.time()) > 0:
            self._take_event(min(0.5, left))
            if newcomer is not None and (ready := newcomer.first("ready")) is not None:
                self._tell(
                    f"The newcomer has the state of step {ready['step']}, {ready['t'] - newcomer.begun:.1f} s after "
                    "its process was started, and trains along.",
                )
                newcomer.step_back()
                newcomer = None
            if time.monotonic() - told > PROGRESS_PERIOD_S:
                told = time.monotonic()
                self._tell_progress(organiser)

    def _finish(self, organiser: Child) -> int:
        steps = [step for _, step, _ in organiser.steps()]
        last = (steps[-1] if steps else 0) + STEPS_TO_THE_END
        self._tell(f"Time is up: everybody finishes after step {last}.")
        for child in self.children:
            if child is not self.killed:
                child.finish_at(last)
        return last

    def _wait_for_goodbyes(self) -> int:
        deadline = time.monotonic() + GOODBYE_LIMIT_S + 4.0 * normal_step_s(self.children[0].steps())
        remaining = [child for child in self.children if child is not self.killed]
        while any(child.is_alive for child in remaining) and time.monotonic() < deadline:
            self._take_event(0.1, expect_ends=True)
        for child in remaining:
            child.wait(0.0)
        return sum(child.is_alive for child in self.children)

    # ---- waiting and telling

    def _take_event(self, seconds: float, *, expect_ends: bool = False) -> None:
        try:
            child, event = self.inbox.get(timeout=max(0.01, seconds))
        except queue.Empty:
            return
        if event.get("event") == "ended" and child is not self.killed and not expect_ends:
            raise child.trouble()

    def _until(self, is_so: Any, what: str) -> None:
        deadline = time.monotonic() + SETUP_LIMIT_S
        while not is_so():
            if time.monotonic() > deadline:
                raise LocalError(f"waited {SETUP_LIMIT_S:.0f} s in vain until {what}; see {self.directory / 'logs'}")
            self._take_event(0.2)

    def _tell_progress(self, organiser: Child) -> None:
        steps = organiser.steps()
        figures = [e for e in organiser.events if e.get("event") == "evaluation"]
        name = self.recipe.headline.name
        held_out = f", {name} {figures[-1][name]:.4g}" if figures and name in figures[-1] else ""
        self._tell(f"step {steps[-1][1] if steps else 0}{held_out}")

    def _tell(self, text: str, **fields: Any) -> None:
        elapsed = max(0.0, time.time() - self.begun)
        self.told.append(f"{int(elapsed) // 60}:{int(elapsed) % 60:02d}  {text}")
        self.output.say(self.told[-1])
        self.output.event("demo", text=text, **fields)


def demo_run(name: str, recipe: type[Recipe[Any]]) -> RunSpec:
    """The run spec of a demo of the recipe `name`. Raises `ConfigurationError`."""
    common = importlib.resources.files("minga.cli.demo").joinpath("demo.toml").read_text("utf-8")
    values: dict[str, Any] = {**tomllib.loads(common), "model": {"recipe": name}}
    for section, table in recipe.demo_spec().items():
        values[section] = {**values.get(section, {}), **table}
    return RunSpec.from_mapping(values, f"the demo of {name}")


def _result_directory(wished: Path | None) -> Path:
    """A new or empty directory for the results."""
    directory = wished or Path("minga-demo")
    number = 1
    while wished is None and directory.exists():
        number += 1
        directory = Path(f"minga-demo-{number}")
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise ConfigurationError(f"--directory {directory}: already there and not empty; choose another one")
    try:
        for folder in ("logs", "peers"):
            (directory / folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"{directory} cannot be made: {error.strerror}") from error
    return directory.resolve()


def _write_summary(directory: Path, summary: dict[str, Any]) -> None:
    import json

    try:
        write_atomically(directory / "summary.json", f"{json.dumps(summary, indent=1)}\n".encode())
    except OSError as error:
        raise StorageError(f"{directory / 'summary.json'} cannot be written: {error.strerror}") from error
