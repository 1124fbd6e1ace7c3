"""Options and arguments that several commands have, and what a text names that a person gave: a link, a run."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from minga.cli.terminal.declaring import argument, option
from minga.core.errors import ConfigurationError, UnreachableError
from minga.identity.links.links import PREFIX, Link

if TYPE_CHECKING:
    from minga.cli.terminal.context import Context
    from minga.recipes.running.run import Work
    from minga.training.join import PeerOptions
    from minga.training.organiser import Organiser
    from minga.training.peer import Peer
    from minga.training.prospect import Consider

RUN_ID: Final = re.compile("[0-9a-f]{4,64}")
"""How the id of a run may begin."""

OF_WHOLE_MODELS: Final = ("device", "precision", "checkpoint_activations", "offload", "base_bits", "compiled")
MODEL_IS_CUT: Final = "not in a run whose model is cut (split learning)"
"""The fields of `WorkOptions` that mean nothing where the model is cut, and what is said then."""

LINK_HELP = "The word that begins with minga1, or the address with it behind #."
RUN_HELP = "The link of a run, or the folder or id of one on this machine."
KEPT_RUN_HELP = "The folder or id of a run on this machine, as `minga runs` lists them."


def checked_link(text: str | None) -> str | None:
    """The link as it came, if it can be read: a bad one is refused before a command imports what it needs.

    Raises `LinkError`.
    """
    if text is not None:
        Link.parse(text)
    return text


def folder_or_link(text: str, directory: Path | None = None, *, file: bool = False) -> Path | None:
    """The folder, or with `file` the file, that `text` names, or the folder whose run it does; None if it is a link.

    Raises `ConfigurationError` if there is nothing of that name, and `LinkError` for a link that cannot be read.
    """
    with contextlib.suppress(OSError):  # a link is longer than the name of a file may be
        path = Path(own_run(text, directory)).expanduser()
        if path.is_dir() or (file and path.is_file()):
            return path
    if re.search(f"{PREFIX}[0-9]", text, re.IGNORECASE) is None:
        raise ConfigurationError(f"{text[:70]!r}: no folder or id of a run on this machine, and no link either")
    Link.parse(text)
    return None


def checked_run(text: str) -> str:
    """Like `checked_link`, where a run of this machine may be named as well."""
    if not RUN_ID.fullmatch(text):
        folder_or_link(text, file=True)
    return text


def own_run(named: str, directory: Path | None = None) -> str:
    """The folder of a run that a person names by how its id begins, as `minga runs` shows it; else `named` as it is.

    Runs lie below `directory` (None: the user's data folder). Raises `ConfigurationError` if no run, or more than one,
    has such an id.
    """
    if not RUN_ID.fullmatch(named) or Path(named).exists():
        return named
    from minga.keeping.known_runs import run_with_id, runs_folder

    return str(run_with_id(named, runs_folder(directory)).directory)


def check_empty(out: Path) -> None:
    """Raise `ConfigurationError` unless --out is a folder that is empty, or not there yet."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigurationError(f"--out {out}: already there and not empty; choose another directory")


@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """What all commands have."""

    json_output: bool = option(
        "One JSON object per line instead of text; the last is a summary.", "--json", default=False, rare=True
    )

    def way(self, usual: str) -> str:
        """The function that does it, as MODULE:NAME: the `usual` one, unless these options ask for something else."""
        return usual


@dataclass(frozen=True, kw_only=True)
class NetworkOptions(OutputOptions):
    """What all commands have that enter a run."""

    directory: Path | None = option(
        "Where runs keep files and checkpoints (default: the user's data folder).", default=None, rare=True
    )
    identity: Path | None = option("The key file to use (default: in the user's data folder).", default=None, rare=True)
    bind: str | None = option(
        "Local IP address to use (default: all interfaces).", default=None, metavar="IP", rare=True
    )


@dataclass(frozen=True, kw_only=True)
class LookingOptions(NetworkOptions):
    """How a command looks at a run without taking part in it; `identity` lets it into a run for members."""

    def peer_options(self) -> PeerOptions:
        """A monitor with a key of its own."""
        from minga.training.join import PeerOptions

        return PeerOptions(
            role="monitor", ephemeral=True, voucher=self.identity, directory=self.directory, host=self.bind
        )

    @contextmanager
    def looking_into(
        self, link: str, context: Context, *, with_files: bool = True, consider: Consider | None = None
    ) -> Iterator[Peer]:
        """Such a monitor in the run of a link. Where that is gone, it is said what this machine kept of it."""
        from minga.keeping.known_runs import FOLDER_DIGITS, runs_folder
        from minga.training.join import join

        context.output.say("Looking for the run …")
        try:
            with join(link, self.peer_options(), with_files=with_files, consider=consider) as joined:
                context.wire(joined)
                yield joined
        except UnreachableError:
            folder = runs_folder(self.directory) / Link.parse(link).run_id[:FOLDER_DIGITS]
            if (folder / "checkpoints").is_dir():
                context.output.say(f"This machine has checkpoints of the run: {folder}")
            raise


@dataclass(frozen=True, kw_only=True)
class OrganiserOptions(NetworkOptions):
    """How an organiser enters the run; `identity` is the file of the organiser's key."""

    link: str = argument("LINK", LINK_HELP, check=checked_link)

    @contextmanager
    def desk(self, context: Context) -> Iterator[Organiser]:
        """The organiser's desk in that run."""
        from minga.identity.links.links import Link
        from minga.training.join import PeerOptions
        from minga.training.organiser import organiser_desk

        options = PeerOptions(directory=self.directory, host=self.bind)
        with organiser_desk(Link.parse(self.link), options, self.identity, context.wire) as organiser:
            yield organiser


@dataclass(frozen=True, kw_only=True)
class OrderOptions(OrganiserOptions):
    """What orders have that several organisers may have to sign."""

    order: Path | None = option("A file that several organisers pass around to sign.", default=None, rare=True)


@dataclass(frozen=True, kw_only=True)
class ParticipantOptions(NetworkOptions):
    """How a machine takes part in a run."""

    role: str
    directory: Path | None = option(
        "Where runs keep files and checkpoints (default: the user's data folder).", default=None
    )
    max_upload: str | None = option(
        'Send no faster than this, such as 10Mbit or "10Mbit, 50Mbit 23:00-07:00".', default=None
    )
    max_download: str | None = option("Receive no faster than this; as above.", default=None, rare=True)
    port: int = option(
        "UDP port; keep it, and the link stays valid. 0: any.", default=0, least=0, most=65535, rare=True
    )
    ephemeral: bool = option("Use a new key that is forgotten at the end.", "--ephemeral", default=False, rare=True)
    leash: bool = option("End with the process that started this one.", "--leash", default=False, hidden=True)

    def check_port(self) -> None:
        """Raise `ConfigurationError` if `port` of `bind` is not free, before all that takes long."""
        from minga.network.iroh.network import NetworkSettings, check_bindable

        check_bindable(NetworkSettings(host=self.bind, port=self.port))

    def peer_options(self) -> PeerOptions:
        """The same as the library takes them. Raises `ConfigurationError`."""
        from minga.core.rate_cap import RateCap
        from minga.training.join import PeerOptions

        if self.role not in ("trainer", "client", "auxiliary", "monitor"):
            raise ConfigurationError(f"--role {self.role}: choose trainer, client, auxiliary or monitor")
        if self.identity is not None and self.ephemeral:
            raise ConfigurationError("--identity and --ephemeral exclude each other: a key is either kept or not")
        return PeerOptions(
            role=self.role,  # type: ignore[arg-type]  # checked above
            identity=self.identity,
            ephemeral=self.ephemeral,
            directory=self.directory,
            max_upload=None if self.max_upload is None else RateCap.parse(self.max_upload, "--max-upload"),
            max_download=None if self.max_download is None else RateCap.parse(self.max_download, "--max-download"),
            host=self.bind,
            port=self.port,
        )


@dataclass(frozen=True, kw_only=True)
class ThreadsOptions:
    """How much of the processor a command uses."""

    threads: int | None = option(
        "CPU threads to compute with (default: all cores).", default=None, least=1, most=1024, rare=True
    )


@dataclass(frozen=True, kw_only=True)
class WorkOptions(ThreadsOptions):
    """How a command trains on this machine, and where its figures go."""

    device: str = option("auto, cpu, cuda, cuda:1, mps, …", default="auto")
    micro_batch: int | None = option(
        "Samples per backward pass (default: what fits; on a processor 16).", default=None, least=1, rare=True
    )
    precision: str = option(
        "auto, float32, bfloat16 or float16; auto is bfloat16 on GPUs that have it.", default="auto", rare=True
    )
    checkpoint_activations: bool = option(
        "Compute activations twice instead of keeping them: less memory, more time.",
        "--checkpoint-activations",
        default=False,
        rare=True,
    )
    offload: bool = option(
        "Keep the optimizer's state in RAM and update parameters there: less memory of the GPU.",
        "--offload",
        default=False,
        rare=True,
    )
    base_bits: int | None = option(
        "Hold the base that the run tunes in 32, 16, 8 or 4 bits here (default: as the run says).",
        default=None,
        rare=True,
    )
    compiled: bool = option(
        "Let PyTorch compile the model, which takes minutes.", "--compile", default=False, rare=True
    )
    log_to: tuple[str, ...] = option(
        "Send figures to tensorboard, wandb or trackio, too; may be repeated.",
        default=(),
        metavar="LOGGER[:PROJECT]",
        rare=True,
    )

    def work(self) -> Work:
        """The same as the recipe takes it."""
        from minga.recipes.running.run import Work

        return Work(
            device=self.device,
            micro_batch=self.micro_batch,
            precision=self.precision,
            threads=self.threads,
            checkpoint_activations=self.checkpoint_activations,
            compiled=self.compiled,
            offload=self.offload,
            base_bits=self.base_bits,
        )
