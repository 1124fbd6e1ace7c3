"""The cells of the two notebooks: what a volunteer runs, and what an organiser runs."""

from __future__ import annotations

import base64
import json
import lzma
from dataclasses import dataclass
from functools import cache
from typing import Final

from minga.core.urls import CPU_WHEELS
from minga.core.wheel import Wheel


@dataclass(frozen=True)
class Cell:
    """A cell of `code`, or else of Markdown; with `folded` code that nobody needs to read is not shown."""

    source: str
    code: bool = False
    folded: bool = False


ANY_LINK: Final = "minga1…"
CHECKOUT: Final = ".."
"""The source of the generic notebooks, which lie in a folder of a checkout."""
LINE_CHARACTERS: Final = 120
"""Of the lines in which a notebook holds a wheel."""

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


def _install(source: Wheel | str) -> list[Cell]:
    """The cells that install minga, from a wheel, which the notebook then holds, or from where `source` says."""
    return [
        *(_held(source) if isinstance(source, Wheel) else _named(source)),
        Cell(
            "import sys\n"
            "from importlib.util import find_spec\n"
            "from shutil import which\n\n"
            'if find_spec("torch") is None:  # Colab and Kaggle have it; without a GPU the one for it is left out\n'
            f'    index = "" if which("nvidia-smi") else "--index-url {CPU_WHEELS}"\n'
            "    %pip install --quiet torch {index}\n"
            'if find_spec("minga") is None:\n'
            '    %pip install --quiet "minga[data] @ {MINGA}"\n'
            "import minga",
            code=True,
        ),
        Cell(f"## Look at this machine\n\n{_GPU}"),
        Cell('!"{sys.executable}" -m minga doctor', code=True),
    ]


def _named(source: str) -> list[Cell]:
    place = ": here the checkout in which this notebook lies" if source == CHECKOUT else ""
    return [
        Cell(
            "## Install\n\nTakes a minute, and downloads 250 MB if PyTorch is here. `MINGA` is a folder or a file on "
            f"this machine, or the address of a wheel{place}."
        ),
        Cell(
            f"MINGA = {_literal(source)}\n"
            "from pathlib import Path\n\n"
            'MINGA = MINGA if "://" in MINGA else Path(MINGA).resolve().as_uri()',
            code=True,
        ),
    ]


@cache
def _held(wheel: Wheel) -> list[Cell]:
    text = base64.b64encode(lzma.compress(wheel.data, preset=1)).decode()
    lines = "\n".join(text[start : start + LINE_CHARACTERS] for start in range(0, len(text), LINE_CHARACTERS))
    return [
        Cell(
            "## Install\n\nTakes a minute, and downloads 250 MB if PyTorch is here. minga is on no package index yet: "
            f"this notebook holds `{wheel.name}`, a copy from the person who made it. That is a program of theirs, so "
            f"run it only if you trust them. Its SHA-256 is `{wheel.sha256}`."
        ),
        Cell(
            f'#@title The copy of minga {{ display-mode: "form" }}\nWHEEL = """\n{lines}\n"""', code=True, folded=True
        ),
        Cell(
            "import base64, hashlib, lzma, tempfile\n"
            "from pathlib import Path\n\n"
            f'wheel = Path(tempfile.mkdtemp(), "{wheel.name}")\n'
            "wheel.write_bytes(lzma.decompress(base64.b64decode(WHEEL)))\n"
            f'MINGA = wheel.as_uri() + "#sha256={wheel.sha256}"',
            code=True,
        ),
    ]


def volunteer_cells(link: str, source: Wheel | str) -> list[Cell]:
    """Take part in the run of `link`; `source` is a wheel that the notebook holds, or where pip finds minga."""
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
        Cell('!"{sys.executable}" -m minga status {mine.link}', code=True),
        Cell(_STOP),
        Cell("mine.stop()\nmine.summary", code=True),
    ]


def organiser_cells(source: Wheel | str) -> list[Cell]:
    """Describe a run, plan it, host it and watch it; `source` as above."""
    return [
        Cell(
            "# Start a run that others join\n\n"
            "Run the cells from top to bottom: describe a run, see what it needs, host it, watch it. A notebook is a "
            "good place to try; a run that lasts wants a machine that stays on."
        ),
        *_install(source),
        Cell("## Describe it\n\n`minga new` lists what can be trained, `minga new RECIPE` prints every setting."),
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
        Cell(
            '!"{sys.executable}" -m minga plan --model albert-tiny --peers "4x(t4, up=20Mbit, down=100Mbit)"', code=True
        ),
        Cell(f"## Host it\n\nOne link is all that others need.\n\n{_LIMITS}"),
        Cell(
            "from minga import notebook\n\n"
            "HOURS = 8\n"
            'mine = notebook.host("run.toml", hours=HOURS, options=["--role", "trainer"])\n'
            "print(mine.link)",
            code=True,
        ),
        Cell("## Watch it\n\nWho takes part, with the loss and the plan of the last round."),
        Cell('!"{sys.executable}" -m minga status {mine.link}', code=True),
        Cell(f"{_STOP} The run's folder keeps its checkpoints; `minga host FOLDER` goes on with it."),
        Cell("mine.stop()\nmine.summary", code=True),
    ]
