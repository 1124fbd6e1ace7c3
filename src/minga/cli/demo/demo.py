"""`minga demo`: an organiser and several trainers as processes on this machine, with a death and a late arrival.

start ── train ──────────────┬── train ────────┬── train ─────────────────── end ── compare digests, show, summary
         all trainers        │ a third: one is │ a half: a newcomer joins
                             │ killed          │ and downloads the state

A recipe whose model is cut plays `cut_model` instead.
"""

from __future__ import annotations

import importlib.resources
import json
import shutil
import time
import tomllib
from pathlib import Path
from typing import Any

import psutil

from minga.cli.commands import DemoCommand
from minga.cli.demo.cut_model import play_cut_model
from minga.cli.demo.report import (
    DemoFacts,
    DemoOutcome,
    check,
    draw_terminal,
    in_words,
    keep_results,
    normal_step_s,
)
from minga.cli.demo.stage import Child, Stage
from minga.cli.terminal.context import Context, apply_threads
from minga.cli.terminal.options import check_empty
from minga.core.errors import StorageError, reason_of
from minga.core.files import store
from minga.core.spec.run_spec import RunSpec
from minga.core.spec.sections import BASE_FOLDER
from minga.recipes.interface import Recipe
from minga.recipes.registry import RECIPES, USUAL_RECIPE

GOODBYE_LIMIT_S = 60.0
MICRO_BATCH = 8
STEPS_TO_THE_END = 2
"""How many steps ahead the common last step is chosen, so that every peer hears of it before."""


def run_demo(options: DemoCommand, context: Context) -> int:
    """Run the demo; the exit code is 1 if something did not come out as promised."""
    recipe, output = RECIPES.get(options.recipe), context.output
    spec = demo_run(options.recipe, recipe)
    directory = _result_directory(options.out)
    stage = Stage(directory, output)
    context.interruption.on_interrupt(stage.abandon)
    try:
        if spec.split.is_on:
            outcome = play_cut_model(stage, spec, options.minutes, options.peers)
        else:
            outcome = _Together(stage, options, recipe, spec).play()
        text = json.dumps(outcome.summary, indent=1, ensure_ascii=False)
        store(directory / "summary.json", f"{text}\n".encode())
    finally:
        stage.abandon()
        shutil.rmtree(directory / "peers", ignore_errors=True)
    words = ["", *outcome.words]
    for line in words:
        output.say(line)
    shown = [*stage.told, *(line.replace(str(directory), directory.name) for line in words)]
    named = "" if options.recipe == USUAL_RECIPE else f" --recipe {options.recipe}"
    draw_terminal(f"minga demo{named} --minutes {options.minutes:g}", shown, directory / "terminal.svg")
    output.summary(**outcome.summary)
    return 0 if outcome.summary["ok"] else 1


class _Together:
    """The demo of a recipe whose peers all have the whole model."""

    def __init__(self, stage: Stage, options: DemoCommand, recipe: type[Recipe[Any]], spec: RunSpec) -> None:
        self.stage, self.options, self.recipe, self.spec = stage, options, recipe, spec
        self._told_step = 0
        self._base: Path | None = None

    def play(self) -> DemoOutcome:
        """All acts, and what came of them."""
        facts = self._run()
        summary = check(facts, self.options.minutes, self.options.peers)
        apply_threads(1)  # several would wait for each other on a machine that others use, too
        shown, summary["results"] = keep_results(facts, self.stage.directory)
        if shown is not None:
            rows = [(row.given.text, *(made.text for made in row.made), row.right.text) for row in shown.rows]
            names = ("given", "before", "after", "right")
            summary |= {"data": shown.data, "shown": [dict(zip(names, row, strict=True)) for row in rows]}
        return DemoOutcome(summary, list(in_words(facts, summary, shown, self.stage.directory)))

    def _run(self) -> DemoFacts:
        stage, load_before = self.stage, psutil.getloadavg()[0] / (psutil.cpu_count() or 1)
        organiser, link = self._start_organiser()
        trainers = [self._start_trainer(f"trainer {n}", link) for n in range(1, self.options.peers + 1)]
        stage.until(lambda: all(t.first("step.applied") for t in trainers), "the trainers have taken a step together")
        begun, length_s = time.time(), 60.0 * self.options.minutes
        stage.tell(f"{len(trainers)} trainers and the organiser have taken their first steps together.")
        self._watch(organiser, begun + length_s / 3)
        victim = trainers[-1]
        normal_s, kill_time = normal_step_s(trainers[0].steps()), time.time()
        stage.kill(victim)
        stage.tell(f"{victim.name} was killed (SIGKILL), without a goodbye.", killed=victim.name)
        self._watch(organiser, begun + length_s / 2)
        stage.tell("A newcomer starts, with nothing but the link.")
        newcomer = self._start_trainer("newcomer", link)
        self._watch(organiser, begun + length_s, newcomer=newcomer)
        stage.until(lambda: newcomer.first("step.applied") is not None, "the newcomer has taken a step")
        seconds = time.time() - begun
        steps = organiser.steps()
        last = (steps[-1][1] if steps else 0) + STEPS_TO_THE_END
        stage.tell(f"Time is up: everybody finishes after step {last}.")
        left_over = stage.end(last, GOODBYE_LIMIT_S + 10.0 * normal_step_s(organiser.steps()))
        return DemoFacts(
            recipe=self.recipe,
            organiser=organiser,
            survivors=[*trainers[:-1], newcomer],
            newcomer=newcomer,
            killed=victim,
            kill_time=kill_time,
            normal_step_s=normal_s,
            last_step=last,
            left_over=left_over,
            seconds=seconds,
            has_base=self._base is not None,
            load_before=load_before,
        )

    def _start_organiser(self) -> tuple[Child, str]:
        self.stage.tell("The organiser prepares the data …")
        spec = self.stage.directory / "run.toml"
        spec.write_text(self.spec.to_toml(), "utf-8")
        organiser = self.stage.start("organiser", ["host", str(spec), "--device", "cpu"])
        self.stage.until(lambda: organiser.first("link") is not None, "the organiser has a link")
        event = organiser.first("link") or {}
        base = Path(str(event["directory"])) / "files" / BASE_FOLDER
        if base.is_dir():
            self._base = base
            self.stage.tell("The base of the run lies on this disk, as from a hub: no peer fetches it from another.")
        self.stage.tell(
            f"The organiser hosts run {str(event['run_id'])[:10]} and has a link of {len(event['link'])} letters."
        )
        return organiser, str(event["link"])

    def _start_trainer(self, name: str, link: str) -> Child:
        own_choice = ["--micro-batch", str(MICRO_BATCH)] if self.recipe.coupling == "none" else []
        own_base = [] if self._base is None else ["--base", str(self._base)]
        child = self.stage.start(name, ["join", link, "--device", "cpu", *own_choice, *own_base])
        if name != "newcomer":
            child.step_back()
        return child

    def _watch(self, organiser: Child, until: float, newcomer: Child | None = None) -> None:
        """Let them train, and tell now and then how it goes."""
        for is_time_to_tell in self.stage.watch(until):
            if newcomer is not None and (ready := newcomer.first("ready")) is not None:
                self.stage.tell(
                    f"The newcomer has the state of step {ready['step']}, {ready['t'] - newcomer.begun:.1f} s after "
                    "its process was started, and trains along.",
                )
                newcomer.step_back()
                newcomer = None
            if is_time_to_tell:
                self._tell_progress(organiser)

    def _tell_progress(self, organiser: Child) -> None:
        """The step, and the headline where it was measured since it was last told."""
        name, steps = self.recipe.headline.name, organiser.steps()
        figures = [event for event in list(organiser.events) if event.get("event") == "evaluation" and name in event]
        held_out = ""
        if figures and figures[-1]["step"] > self._told_step:
            self._told_step = figures[-1]["step"]
            held_out = f", {name} {figures[-1][name]:.4g} at step {self._told_step}"
        self.stage.tell(f"step {steps[-1][1] if steps else 0}{held_out}")


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
    check_empty(directory)
    try:
        for folder in ("logs", "peers"):
            (directory / folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"{directory} cannot be made: {reason_of(error)}") from error
    return directory.resolve()
