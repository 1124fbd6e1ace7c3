"""The cells of the two notebooks: what a volunteer runs, and what an organiser runs."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Cell:
    """A cell of `code`, or else of Markdown."""

    source: str
    code: bool = False


ANY_LINK: Final = "minga1…"
DEFAULT_SOURCE: Final = "https://example.org/minga-0.1.0-py3-none-any.whl"
"""What stands in the generic notebooks, for their readers to replace."""

_GPU: Final = """\
A GPU helps, and is not needed. In Colab choose *Runtime, Change runtime type, T4 GPU*. In Kaggle choose a GPU under
*Settings, Accelerator*, and switch *Internet* on. `minga doctor` says what this machine has, and what is missing."""

_LIMITS: Final = """\
**Limits of free notebooks.** Colab ends a free session after at most 12 hours, and sooner when its tab is closed or
nothing happens in it. Kaggle ends a session after at most 12 hours and gives about 30 hours of GPU a week. `HOURS`
below keeps within that: minga then finishes its step and leaves in order. Read the rules of your provider first: those
of Colab have excluded workers of distributed computing from its free machines, and then a paid one is needed
([its questions and answers](https://research.google.com/colaboratory/faq.html))."""

_STOP: Final = """\
## Stop

This finishes the step, says goodbye to the other peers, and shows what you gave. Nothing is lost if the notebook dies
instead: the other peers go on without it."""


def _literal(text: str) -> str:
    """As Python reads it: quotes and the backslashes of Windows' paths are escaped."""
    return json.dumps(text, ensure_ascii=False)


def _install(source: str) -> list[Cell]:
    return [
        Cell("## Install\n\nTakes a minute. `MINGA` is a wheel's address, or a folder or file on this machine."),
        Cell(
            f"MINGA = {_literal(source)}\n"
            "try:\n"
            "    import minga  # already here\n"
            "except ImportError:\n"
            "    from pathlib import Path\n\n"
            '    place = MINGA if "://" in MINGA else Path(MINGA).resolve().as_uri()\n'
            '    %pip install --quiet "minga[data] @ {place}"',
            code=True,
        ),
        Cell(f"## Look at this machine\n\n{_GPU}"),
        Cell("!minga doctor", code=True),
    ]


def volunteer_cells(link: str, source: str) -> list[Cell]:
    """Take part in the run of `link`; `source` is where pip finds minga."""
    return [
        Cell(
            "# Train a model together with other people\n\n"
            "Run the cells from top to bottom. This machine then computes gradients for a run of "
            "minga, and exchanges them with other people's machines. It runs no code of other peers. They see its IP "
            "address."
        ),
        *_install(source),
        Cell(f"## Take part\n\n{_LIMITS}"),
        Cell(
            "from minga import notebook\n\n"
            f"LINK = {_literal(link)}\n"
            "HOURS = 8\n"
            'mine = notebook.join(LINK, hours=HOURS)  # options=["--max-upload", "10Mbit"] limits what it sends',
            code=True,
        ),
        Cell("The output above is live, and you may run other cells beside it. This one shows who else takes part:"),
        Cell("!minga status {mine.link}", code=True),
        Cell(_STOP),
        Cell("mine.stop()\nmine.summary", code=True),
    ]


def organiser_cells(source: str) -> list[Cell]:
    """Describe a run, plan it, host it and watch it."""
    return [
        Cell(
            "# Start a run that others join\n\n"
            "Run the cells from top to bottom: describe a run, see what it needs, host it, watch it. A notebook is a "
            "good place to try; a run that lasts wants a machine that stays on."
        ),
        *_install(source),
        Cell("## Describe it\n\n`minga recipes` lists what can be trained, `minga new RECIPE` prints every setting."),
        Cell(
            "%%writefile run.toml\n"
            'name = "a run from a notebook"\n\n'
            "[recipe.albert]\n"
            'size = "tiny"\n\n'
            "[optimizer]\n"
            'name = "adamw"\n'
            "learning_rate = 0.002\n"
            "warmup_steps = 10\n"
            'schedule = "constant"\n\n'
            "[training]\n"
            "target_batch_size = 256\n"
            "stop_after_steps = 200\n\n"
            "[checkpoints]\n"
            "every_steps = 20",
            code=True,
        ),
        Cell("## Plan it\n\nFor the machines that you expect: steps an hour, traffic and memory of each."),
        Cell('!minga plan --model albert-tiny --peers "4x(t4, up=20Mbit, down=100Mbit)"', code=True),
        Cell(f"## Host it\n\nOne link is all that others need.\n\n{_LIMITS}"),
        Cell(
            "from minga import notebook\n\n"
            "HOURS = 8\n"
            'mine = notebook.host("run.toml", hours=HOURS, options=["--role", "trainer"])\n'
            "print(mine.link)",
            code=True,
        ),
        Cell("## Watch it\n\nWho takes part, with the loss and the plan of the last round."),
        Cell("!minga status {mine.link}", code=True),
        Cell(f"{_STOP} The run's folder keeps its checkpoints; `minga host --resume FOLDER` goes on with it."),
        Cell("mine.stop()\nmine.summary", code=True),
    ]
