"""How newcomers take part: what they are told of a run, the commands by system, and the page with both.

The page is one file. It loads nothing, so it works offline and from any web server. Nothing in it is trusted: every
value of the run is escaped, and a policy forbids every script but its own. That one copies commands and, where the page
lies on a web server as a file, puts the page's own address and the link behind its `#` into them.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Final

from minga.core.qr import as_svg, code_of
from minga.core.spec.run_spec import RunSpec
from minga.core.urls import CPU_WHEELS, CUDA_WHEELS
from minga.core.wheel import Wheel
from minga.identity.links.links import Link
from minga.recipes.registry import CUSTOM

if TYPE_CHECKING:
    from minga.training.status.run_status import RunStatus

COLAB: Final = "https://colab.research.google.com/"
_STATIC: Final = Path(__file__).parent / "static"


@dataclass(frozen=True)
class Source:
    """Where newcomers get minga: `base` and `name` together are what pip takes.

    A `base` is the address of an organiser's page, with a slash at its end, beside which the wheel lies; without one
    the run spec names the source.
    """

    base: str
    name: str

    @classmethod
    def of(cls, spec: RunSpec | None, base: str, wheel: Wheel | None) -> Source | None:
        """The source that a run spec names, or else the `wheel` that the page at `base` hands out, if it does."""
        if spec is not None and spec.network.source_url is not None:
            return cls("", spec.network.source_url)
        return None if wheel is None else cls(base, wheel.reference)


@dataclass(frozen=True)
class JoinFacts:
    """What newcomers are told of a run.

    `link` is None in a run for members, whose organiser gives out invitations; LINK stands for it in the `command` by
    which a machine takes part. `rows` are further facts, by name. `completed` is the last step of a run that has taken
    it. `is_custom`: a program of the organiser has the model and its data, and none of minga's recipes. `is_cut`: the
    model is, and each client has data of its own.
    """

    name: str
    link: str | None
    command: str
    rows: Mapping[str, str]
    completed: int | None = None
    is_custom: bool = False
    is_cut: bool = False

    @classmethod
    def of(cls, spec: RunSpec, link: Link, status: RunStatus | None = None) -> JoinFacts:
        """The facts of the run of a link, by its spec as it is amended, with what is known of it now."""
        word = None if spec.security.admission == "members" else str(link)
        smallest, largest = zip(*(phase.training.batch_range for phase in spec.phases), strict=True)
        least, most = min(smallest), max(largest)
        batch = f"{least:,}" if least == most else f"{least:,} to {most:,}"
        last = spec.training.stop_after_steps
        if status is not None:
            last = status.last_step
            batch = f"{status.target_batch_size:,}" + ("" if least == most else f" now, {batch} in all")
        rows = {
            "Model": "a model of the organiser's own" if spec.model.recipe == CUSTOM else spec.model.recipe,
            "Samples per step": batch,
            "Steps": "no end is set" if last is None else f"{last:,}",
            "Open to": "members" if word is None else "every peer with the link",
            "Run": link.run_id,
            "Organiser's key": link.organiser,
        }
        is_custom = spec.model.recipe == CUSTOM
        command = f"{'python PROGRAM.py' if is_custom else 'minga join'} {word or 'LINK'}"
        completed = last if status is not None and status.is_complete else None
        return cls(spec.name, word, command, rows, completed, is_custom, spec.split.is_on)

    @property
    def notebook_link(self) -> str | None:
        """The link by which a notebook takes part without the help of a person, if one can."""
        return None if self.is_custom or self.is_cut else self.link


@dataclass(frozen=True)
class Installation:
    """The commands of one kind of machine, and what they download."""

    title: str
    commands: tuple[str, ...]
    note: str


def ways_to_join(source: Source, command: str, *, with_data: bool = True) -> list[Installation]:
    """Each way from a machine without minga to the `command` that takes part.

    PyTorch has a line of its own where pip would otherwise fetch gigabytes for a GPU that is not there. Nothing is
    compiled in advance: that takes as long as all the rest of an installation, and most of it is never imported.
    """
    package = f"minga{'[data]' if with_data else ''} @ {source.base}{source.name}"
    get = f"python -m pip install --no-compile '{package}'"
    unix = "python3 -m venv minga-env && . minga-env/bin/activate"
    torch_for_cpu = f"pip install torch --index-url {CPU_WHEELS}"
    cpu_torch = f"python -m {torch_for_cpu}"
    cuda_torch = f"python -m pip install torch --index-url {CUDA_WHEELS}"
    in_container = f'{torch_for_cpu} && pip install --no-compile \\"{package}\\" && {command}'
    small = "Downloads about 450 MB: PyTorch for the processor (190 MB), and 250 MB that minga needs."
    return [
        Installation(
            "Linux",
            (unix, cpu_torch, get, command),
            f"{small} On Debian and Ubuntu the first line needs: sudo apt install python3-venv",
        ),
        Installation(
            "Linux, with an NVIDIA GPU",
            (unix, get, command),
            "Downloads about 3.3 GB: pip takes PyTorch with CUDA (3 GB), and 250 MB that minga needs.",
        ),
        Installation("macOS", (unix, get, command), "Downloads about 350 MB. PyTorch uses the GPU of Apple's chips."),
        Installation(
            "Windows, in WSL",
            ("wsl --install   (in PowerShell, once; then in its terminal:)", unix, cpu_torch, get, command),
            f"{small} With an NVIDIA GPU leave out the line with torch: then it is about 3.3 GB.",
        ),
        Installation(
            "Windows, without WSL (PowerShell)",
            (
                "py -m venv minga-env; minga-env\\Scripts\\Activate.ps1",
                f"{cuda_torch}   (with an NVIDIA GPU only)",
                get,
                command,
            ),
            "Downloads about 400 MB, with an NVIDIA GPU about 3 GB.",
        ),
        Installation(
            "Docker",
            (f'docker run --rm -it -v minga:/data -e XDG_DATA_HOME=/data python:3.12-slim sh -c "{in_container}"',),
            f"{small} The container sees nothing of the machine but the network and its own volume.",
        ),
    ]


@dataclass(frozen=True)
class JoinPage:
    """The page for newcomers of one run.

    source: where they get minga; None if this page hands out none, and the run spec names none.
    address: where the page is found, for its QR code. notebook: the address of a notebook that joins.
    is_as_signed: whether the wheel is the one that the run's signed spec names.
    pages: further pages of a dashboard for this viewer, as address and title.
    is_file: the page is a file, whose place its writer does not know; it puts its own address into the commands.
    caution: a sentence about who can reach the page.
    """

    facts: JoinFacts
    source: Source | None
    address: str | None = None
    notebook: str | None = None
    is_as_signed: bool = False
    pages: tuple[tuple[str, str], ...] = ()
    is_file: bool = False
    caution: str = ""

    def html(self) -> str:
        """The page."""
        name = escape(self.facts.name)
        body = self._open() if self.facts.completed is None else self._complete()
        pages = "".join(f'<a href="{escape(address)}">{escape(title)}</a>' for address, title in self.pages)
        return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{escape(policy())}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<meta name="color-scheme" content="light dark">
<title>Join · {name}</title>
<style>{_style()}</style>
<script>{_script()}</script>
</head>
<body>
<header class="top">
<div class="brand"><span class="run-name">{name}</span></div>
<nav aria-label="Pages">{pages}</nav>
<button id="theme" class="quiet" type="button" aria-label="Change between dark and light">◐</button>
</header>
<main id="main">
{body}{_card("The run", self._rows(), "two-thirds")}{self._code()}{_card("What it uses", _USES, "wide")}</div>
</main>
</body>
</html>
"""

    def _open(self) -> str:
        facts = self.facts
        words = (
            "This run is for members: ask its organiser for an invitation, and put it in the place of LINK."
            if facts.link is None
            else "With minga installed, this one command is all:"
        )
        head = _head("Take part", "Volunteers train one neural network together, each on their own machine. Yours can.")
        command = self._commands((facts.command,), "big-command")
        return head + _card("Join", _note(words) + command, "wide") + self._from_nothing()

    def _complete(self) -> str:
        head = _head(
            "This run is complete", f"Step {self.facts.completed:,} was its last one. There is nothing left to do."
        )
        if self.facts.is_custom:
            return head + _card("Get the model", _note(_ORGANISERS_MODEL), "wide")
        export = self._commands((f"minga export {self.facts.link or 'LINK'} --out model",), "big-command")
        return head + _card("Get the model", _note(_EXPORTS) + export, "wide")

    def _from_nothing(self) -> str:
        if self.source is None:
            return _card("From nothing", _note(_NO_SOURCE), "wide")
        ways = ways_to_join(self.source, self.facts.command, with_data=not self.facts.is_custom)
        shown = "".join(
            f"<details{' open' if place == 0 else ''}><summary><strong>{escape(way.title)}</strong></summary>"
            f"{self._commands(way.commands)}{_note(way.note)}</details>\n"
            for place, way in enumerate(ways)
        )
        whose = _OWN_CODE if self.source.base else f"minga comes from {self.source.name}, as the organiser says."
        said = f"<p>{escape(whose)}</p>" + _note(f"It needs Python 3.11 or later. {self.caution}".rstrip())
        width = "wide" if self.notebook is None else "two-thirds"
        return _card("From nothing", f'{said}<div class="stack">{shown}</div>', width) + self._in_notebook()

    def _in_notebook(self) -> str:
        if self.notebook is None:
            return ""
        return _card(
            "In a notebook",
            f"{_note(_NOTEBOOK)}"
            f'<p class="actions"><a class="button" href="{escape(self.notebook)}" download>Download the notebook</a>'
            f'<a class="button" href="{COLAB}" rel="noreferrer">Open Colab</a></p>',
            "third",
        )

    def _rows(self) -> str:
        rows = dict(self.facts.rows)
        if self.source is not None and self.source.base:
            name, _, digest = self.source.name.partition("#sha256=")
            signed = "as the organiser has signed it for this run" if self.is_as_signed else "which pip checks"
            rows["minga here"] = f"{name}, SHA-256 {digest}, {signed}"
        return f'<dl class="facts">{"".join(f"<dt>{escape(k)}</dt><dd>{escape(v)}</dd>" for k, v in rows.items())}</dl>'

    def _code(self) -> str:
        if self.address is None:
            return ""
        words = _note(f"The camera of another device opens this page: {self.address}")
        return _card("On another device", _code_of(self.address) + words, "third")

    def _commands(self, commands: tuple[str, ...], kind: str = "") -> str:
        """Lines of commands. In a file the link and the page's address are marked, so that it can put in its own."""
        lines = escape("\n".join(commands), quote=False)
        if self.is_file:
            marked = [(self.facts.link or "LINK", "link")]
            marked += [(self.source.base, "base")] if self.source is not None and self.source.base else []
            for text, name in marked:
                lines = lines.replace(escape(text, quote=False), f'<span class="{name}">{escape(text)}</span>')
        return (
            f'<div class="copy-row"><pre class="{kind}" tabindex="0">{lines}</pre>'
            '<button type="button" class="copy">Copy</button></div>'
        )


_OWN_CODE: Final = (
    "minga is on no package index yet. These lines install the organiser's own copy from this page: a program of "
    "theirs on your machine, so install it only if you trust them."
)
_NO_SOURCE: Final = (
    "This page hands out no copy of minga. The page of the run's organiser does: ask them for its address."
)
_NOTEBOOK: Final = (
    "It holds the same copy of minga, joins with this link, and needs nothing else. In Colab choose Upload and this "
    "file; in Kaggle, File and Import Notebook; Jupyter opens it as it is."
)
_ORGANISERS_MODEL: Final = "It is that of a program of the organiser, who has it."
_EXPORTS: Final = "While a peer that has its state is there, this gets the model:"
_USES: Final = (
    '<ul class="sentences"><li>The processor or GPU, at full load while it trains; <code>--threads</code> and '
    "<code>--device</code> limit that.</li>"
    "<li>The internet connection: <code>minga join</code> says how much a day before it asks. "
    "<code>--max-traffic 50GB/month</code> and <code>--max-upload 10Mbit</code> limit it.</li>"
    "<li>Memory and disk for the model, its optimizer and the checkpoints.</li>"
    "<li>The other peers see your IP address. minga runs no code that it receives from them.</li>"
    "<li>Ctrl-C leaves, at any time.</li></ul>"
)


def _head(title: str, words: str) -> str:
    words = f"<h1>{escape(title)}</h1><p>{escape(words)}</p>"
    return f'<div class="page-head"><div>{words}</div></div>\n<div class="grid">\n'


def _note(words: str) -> str:
    return f'<p class="note">{escape(words)}</p>'


def _card(title: str, content: str, width: str) -> str:
    return f'<section class="card {width}"><div class="card-head"><h2>{escape(title)}</h2></div>{content}</section>\n'


@lru_cache(maxsize=16)  # it takes milliseconds, and every person may ask
def _code_of(address: str) -> str:
    return as_svg(code_of(address))


@cache
def _style() -> str:
    return "".join((_STATIC / "css" / f"{name}.css").read_text("utf-8") for name in ("theme", "layout", "parts"))


@cache
def _script() -> str:
    return "".join((_STATIC / "js" / f"{name}.js").read_text("utf-8") for name in ("theme", "join_page"))


@cache
def policy() -> str:
    """What browsers are to let the page do."""
    own = f"style-src '{_hash(_style())}'; script-src '{_hash(_script())}'"
    return f"default-src 'none'; {own}; base-uri 'none'; form-action 'none'"


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
