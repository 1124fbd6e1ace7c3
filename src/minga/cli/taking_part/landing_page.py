"""A web page on which an organiser publishes a link: what the run is, what it uses, how to join.

The page is one file. It loads nothing, so it works offline and from any web server; its one short script shows the
link that stands behind `#` in its own address, where there is one. Nothing in it is trusted: every value of the run is
escaped, and a policy forbids every other script.
"""

from __future__ import annotations

import base64
import hashlib
from html import escape
from pathlib import Path

from minga.core.errors import StorageError
from minga.core.files import write_atomically
from minga.core.spec.run_spec import RunSpec
from minga.dashboard.ways_to_join import ways_to_join
from minga.identity.links.links import Link

_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:46rem;margin:auto;padding:0 1rem;color:#222;background:#fff}"
    "pre{background:#f3f3f3;padding:.7rem;overflow-x:auto;white-space:pre-wrap;overflow-wrap:anywhere}"
    "dt{font-weight:600}@media(prefers-color-scheme:dark){body{color:#ddd;background:#161616}pre{background:#262626}}"
)
_SCRIPT = (
    "const found=location.hash.slice(1);"
    "if(/^minga1[a-z2-7]{60,4000}$/.test(found))"
    "for(const place of document.querySelectorAll('.link'))place.textContent=found;"
)


def landing_page(spec: RunSpec, link: Link) -> str:
    """The page as HTML. It holds the link only where the link admits everybody."""
    for_members = spec.security.admission == "members"
    word = "LINK" if for_members else str(link)
    policy = f"default-src 'none'; style-src '{_hash(_STYLE)}'; script-src '{_hash(_SCRIPT)}'"
    ways = "".join(
        f"<h3>{escape(title)}</h3>\n<pre>{_commands(commands, word)}</pre>\n" for title, commands in ways_to_join(spec)
    )
    who = (
        "<p>This run is for members: ask its organiser for an invitation, and put it in the place of LINK.</p>\n"
        if for_members
        else ""
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="referrer" content="no-referrer">\n'
        f"<title>{escape(spec.name)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        f"<h1>{escape(spec.name)}</h1>\n"
        "<p>Volunteers train one neural network together, each on their own machine. Yours can take part.</p>\n"
        f"<dl>\n{_facts(spec, link)}</dl>\n<h2>What it uses</h2>\n{_USES}\n<h2>Join</h2>\n{who}{_NEEDS}\n{ways}"
        f"<script>{_SCRIPT}</script>\n</body>\n</html>\n"
    )


def write_landing_page(path: Path, spec: RunSpec, link: Link) -> None:
    """Write the page. Raises `StorageError`."""
    try:
        write_atomically(path, landing_page(spec, link).encode())
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error.strerror}") from error


_USES = (
    "<ul>\n<li>The processor or GPU, at full load while it trains; <code>--threads</code> and <code>--device</code> "
    "limit that.</li>\n"
    "<li>The internet connection, all the time. <code>--max-upload 10Mbit</code> and <code>--max-download</code> cap "
    "it.</li>\n"
    "<li>Memory and disk for the model, its optimizer and the checkpoints.</li>\n"
    "<li>The other peers see your IP address. minga runs no code that it receives from them.</li>\n"
    "<li>Ctrl-C leaves.</li>\n</ul>"
)


_NEEDS = (
    "<p>Needed: Python 3.11 or later, or Docker, and the source of minga. REPOSITORY stands for the address of that "
    "source, which the organiser of the run tells you.</p>"
)


def _facts(spec: RunSpec, link: Link) -> str:
    """What the run is."""
    model = "a model of the organiser's own" if spec.model.recipe == "custom" else spec.model.recipe
    facts = {
        "Model": model,
        "Samples per step": f"up to {spec.training.batch_range[1]:,}",
        "Steps": "no end is set" if spec.training.stop_after_steps is None else f"{spec.training.stop_after_steps:,}",
        "Run": link.run_id,
        "Organiser's key": link.organiser,
    }
    return "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>\n" for name, value in facts.items())


def _commands(commands: list[str], word: str) -> str:
    """Lines of commands, with the link marked so that the page can put its own in."""
    marked = f'<span class="link">{escape(word)}</span>'
    return "\n".join(escape(command).replace("LINK", marked) for command in commands)


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
