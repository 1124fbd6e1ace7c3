"""What becomes of the model of a run.

`minga export` writes it as a directory that its own library loads, `minga sample` has it continue or draw prompts, and
`minga evaluate` says what it is good for, by the tasks that its recipe names or by its figures.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from minga.cli.commands import USUAL_REPEAT, EvaluateCommand, ExportCommand, SampleCommand
from minga.cli.terminal.context import Context, apply_threads
from minga.cli.terminal.options import LookingOptions, check_empty, folder_or_link, own_run
from minga.cli.terminal.output import Display, plain_table
from minga.core.errors import ConfigurationError, LinkError, UnreachableError
from minga.core.files import store
from minga.core.units import counted
from minga.identity.links.links import Link
from minga.keeping.known_runs import known_run
from minga.keeping.rejoin import SPEC_FILE
from minga.network.gossip.record_kinds import AddressInfo
from minga.network.interface import PeerId
from minga.recipes.exported import read_provenance
from minga.recipes.images.grid import grid_png
from minga.recipes.interface import Recipe, Sample, SampleOptions
from minga.recipes.registry import CUSTOM, RECIPES, load_recipe
from minga.recipes.running.trained_model import TrainedModel, from_run_folder, with_state
from minga.recipes.task_report import Score, TaskOptions, TaskReport
from minga.training.peer import Peer
from minga.training.prospect import Prospect
from minga.training.record_kinds import Progress
from minga.training.replica.replica import Replica
from minga.training.session import Session
from minga.training.state.manifest import Manifest
from minga.training.state.snapshot import StateSnapshot
from minga.training.transfer.download import Wanted, download

DONORS_TIMEOUT_S = 10.0
ATTEMPTS = 5
RETRY_S = 1.0
USUAL_SHEET: Final = Path("samples.png")
NAMES: Final = {"ner": "named entities", "ncc": "classes of texts"}
CHECKPOINTS: Final = "checkpoints"
FROM_ELSEWHERE: Final = "masked-lm"
"""The recipe whose tasks are those of a model that minga did not export, such as one of the hub."""


def run_export(options: ExportCommand, context: Context) -> None:
    """Export from the newest checkpoint in a run's folder, or from the peers of a live run."""
    out = options.out
    check_empty(out)
    with trained_model(options.run, options, context) as trained:
        context.output.say("Writing the model, with its figures on held-out data …")
        provenance = trained.recipe.provenance(trained.step, trained.lineage)
        write = trained.recipe.export_merged if options.merge else trained.recipe.export
        write(trained.model, trained.files, out, provenance)
    step = trained.step
    context.output.say(f"{out}: the model after step {step}; README.md in it says how to load it.")
    context.output.summary(ok=True, step=step, out=str(out))


@contextmanager
def trained_model(run: str, options: LookingOptions, context: Context) -> Iterator[TrainedModel]:
    """The model of a run: of the newest checkpoint in its folder, or as the peers of its link have it now."""
    folder = folder_or_link(run, options.directory)
    if folder is not None:
        yield from_run_folder(folder)
        return
    with options.looking_into(run, context, consider=_elsewhere) as joined:
        yield with_state(joined.spec, joined.files, lambda replica: _from_swarm(joined, replica))


def _elsewhere(prospect: Prospect) -> Path | None:
    """Where files of the run are that need not come from its peers."""
    spec = prospect.spec
    return None if spec.model.recipe == CUSTOM else load_recipe(spec).elsewhere(spec.files)


def _from_swarm(peer: Peer, replica: Replica) -> StateSnapshot:
    return peer.call(newest_state(peer.session, replica.check))


async def newest_state(session: Session, check: Callable[[Manifest], None]) -> StateSnapshot:
    """The newest state that the peers serve, downloaded without taking part in the run.

    Peers that serve a state keep it ready for a while, and it grows old: what counts is at least the step that half of
    them have reached. Whom it is fetched from may take a step or leave meanwhile, so it is tried `ATTEMPTS` times.
    Raises `UnreachableError`.
    """

    async def accept(manifest: Manifest) -> None:
        check(manifest)  # nothing trains here

    def donors() -> dict[PeerId, int]:
        progress = {item.owner: item.payload.step for item in session.board.items(Progress)}
        able = [peer for peer, info, _ in session.board.items(AddressInfo) if peer in progress]
        return {peer: progress[peer] for peer in sorted(able, key=lambda peer: (-progress[peer], peer))}

    for attempt in range(1, ATTEMPTS + 1):
        try:
            async with asyncio.timeout(DONORS_TIMEOUT_S):
                while not donors():
                    await session.board.changed(session.board.generation)
        except TimeoutError as error:
            raise UnreachableError("no peer of the run has a state to give; is anybody training?") from error
        found = donors()
        reached = list(found.values())[(len(found) - 1) // 2] if found else 0
        try:
            genesis = None if session.founding is None else session.founding.genesis
            wanted = Wanted(reached, founding="" if genesis is None else genesis.id)
            state = await download(session.node, list(found), wanted, accept=accept, cache=session.settings.cache)
        except UnreachableError:
            if attempt == ATTEMPTS:
                raise
            await asyncio.sleep(RETRY_S)
        else:
            break
    return state.snapshot


# ---- sample


def run_sample(given: SampleCommand, context: Context) -> None:
    """Sample from a run, and write the pictures among the samples on one sheet.

    Raises `ConfigurationError` if the recipe of the run draws no samples, `StorageError` if the disk refuses the sheet.
    """
    options = SampleOptions(
        given.n, given.temperature, given.top_k, given.top_p, given.guidance, given.length, given.seed
    )
    output = context.output
    with trained_model(given.run, given, context) as trained:
        samples = trained.recipe.sample(trained.model, trained.files, given.prompts, options)
    for sample in samples:
        beside = {} if sample.of_base is None else {"of_base": sample.of_base}
        output.event("sample", prompt=sample.prompt, text=sample.text, **beside)
        if sample.of_base is not None:
            output.say_whole(f"{sample.prompt}\n  base:  {sample.of_base}\n  tuned: {sample.text}\n")
        elif sample.image is None:
            output.say_whole(f"{sample.text}\n")
    sheet = _write_sheet(samples, options, given.out or USUAL_SHEET)
    if sheet:
        output.say(f"{sheet}: {counted(len(samples), 'picture')} by the model after step {trained.step}")
    elif given.out is not None:
        output.say(f"The recipe {trained.recipe.context.recipe} makes no pictures: {given.out} is not written.")
    output.summary(ok=True, step=trained.step, samples=len(samples), out=sheet)


def _write_sheet(samples: Sequence[Sample], options: SampleOptions, path: Path) -> str | None:
    """Write the pictures among the samples; where to, None if there are none."""
    shown = [(sample.image, sample.prompt) for sample in samples if sample.image is not None]
    if not shown:
        return None
    images, captions = zip(*shown, strict=True)
    store(path, grid_png(images, captions, notes={"seed": str(options.seed)}))
    return str(path)


# ---- evaluate


def run_evaluate(options: EvaluateCommand, context: Context) -> None:
    """Do the task; the table has a model from scratch beside this one. Of a run it has the figures on held-out data.
    Raises `ConfigurationError`.
    """
    apply_threads(options.threads)
    model, task = own_run(options.model), options.task
    folder = Path(model).expanduser()
    with contextlib.suppress(LinkError):
        Link.parse(model)
        raise ConfigurationError(
            f"{model[:20]}…: the link of a run, and no model yet; type minga export LINK --out MODEL, and then "
            "minga evaluate MODEL"
        )
    provenance = read_provenance(folder)
    of_run, trained = _recipe_of_run(folder)
    name = of_run or (FROM_ELSEWHERE if provenance is None else provenance.recipe)
    recipe: type[Recipe[Any]] | None = None if name == CUSTOM else RECIPES.get(name)
    if of_run is not None and recipe is not None:
        if task or options.data or options.examples or options.repeat != USUAL_REPEAT:
            typed = f"they are for a model, so type minga export {model} --out MODEL, and then minga evaluate MODEL"
            raise ConfigurationError(
                f"--task, --data, --repeat and --examples: {model} is the folder of a run, which is measured on its "
                f"held-out data without them; {typed if recipe.tasks else f'the recipe {name} has no tasks'}"
            )
        _show_figures(from_run_folder(folder) if trained is None else trained, context)
        return
    if recipe is None or not recipe.tasks:
        raise ConfigurationError(
            f"{model}: a model of the recipe {name}, for which there are no tasks; {_else(recipe)}"
        )
    chosen = task or recipe.tasks[0]
    if chosen not in recipe.tasks:
        raise ConfigurationError(f"--task {task}: a model of the recipe {name} has {' and '.join(recipe.tasks)}")
    import transformers

    transformers.logging.set_verbosity_error()  # it reports each new head as a parameter that is missing
    transformers.logging.disable_progress_bar()
    report = recipe.judge(
        model, TaskOptions(chosen, options.data, options.repeat, options.examples), context.output.say
    )
    basis = (
        f"{NAMES.get(chosen, chosen)}; {report.data}, {counted(report.examples, 'example')} to train on, mean and "
        f"deviation of {counted(options.repeat, 'run')}"
    )
    context.output.show(Display([_table(report), basis], report.as_json()))


def _recipe_of_run(folder: Path) -> tuple[str | None, TrainedModel | None]:
    """The recipe of a run by its folder, None for another one; with the model, where that had to be read for it."""
    if (folder / SPEC_FILE).is_file():
        return known_run(folder).spec.model.recipe, None
    if not (folder / CHECKPOINTS).is_dir():
        return None, None
    trained = from_run_folder(folder)  # its host kept no key, and so no spec
    return trained.recipe.context.recipe, trained


def _show_figures(trained: TrainedModel, context: Context) -> None:
    """The figures of the newest checkpoint of a run on its held-out data."""
    context.output.say(f"Measuring the model after step {trained.step} on held-out data …")
    figures = trained.recipe.evaluate(trained.model, trained.files)
    if not figures:
        raise ConfigurationError("the run spec holds no data out, so there is nothing to measure the model on")
    table = plain_table("figure", "value", left=["figure"])
    for name, value in figures.items():
        table.add_row(name, f"{value:.4f}")
    context.output.show(Display([table], {"step": trained.step, **figures}))


def _else(recipe: type[Recipe[Any]] | None) -> str:
    """What to type instead, for a model without tasks."""
    if recipe is None:
        return "the program that trains it has to evaluate it, see minga.Peer.newest_checkpoint"
    return (
        f"it is judged by its {recipe.headline.name}: minga evaluate FOLDER shows it, of the folder of its run, and "
        "minga join LINK --evaluate while the run goes on"
    )


def _table(report: TaskReport) -> Any:
    beside = {"trained": report.trained, "from scratch": report.from_scratch}
    table = plain_table("figure", *beside, left=["figure"])
    for name in report.trained:
        table.add_row(name, *(_shown(scores[name]) for scores in beside.values()))
    return table


def _shown(score: Score) -> str:
    return f"{score.mean:.3f} ± {score.deviation:.3f}"
