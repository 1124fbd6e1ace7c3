"""The commands of `minga` as data, in the order of `minga --help`: what each is called with, and what does it.

See `declaring`. Nothing heavy is imported here: a command's own module is, once it is called.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from minga.cli.terminal.declaring import argument, command, option
from minga.cli.terminal.options import (
    KEPT_RUN_HELP,
    LINK_HELP,
    RUN_HELP,
    LookingOptions,
    NetworkOptions,
    OrderOptions,
    OrganiserOptions,
    OutputOptions,
    ParticipantOptions,
    ThreadsOptions,
    WorkOptions,
    checked_link,
    checked_run,
)
from minga.core.errors import ConfigurationError
from minga.recipes.registry import USUAL_MODEL, USUAL_RECIPE

if TYPE_CHECKING:
    from minga.recipes.running.run import Work
    from minga.training.join import PeerOptions

TAKE_PART, ORGANISE, PLAN = "Take part", "Organise", "Plan and simulate"


# ---- take part


@command(TAKE_PART, "minga.cli.demo.demo:run_demo", "minga demo --minutes 1")
class DemoCommand(OutputOptions):
    """Train a small model with several peers on this machine.

    The data is bundled. One peer is killed, another one joins late.
    """

    minutes: float = option("How long to train, from the first step on.", default=3.0, least=0.1, most=600.0)
    peers: int = option("Trainers at the start.", default=3, least=2, most=16)
    recipe: str = option("The recipe that they train.", default=USUAL_RECIPE, metavar="NAME")
    out: Path | None = option("Folder for the results (default: ./minga-demo, numbered).", default=None)


@command(TAKE_PART, "minga.cli.taking_part.join:run_join", "minga join LINK --max-upload 10Mbit", slow_imports=True)
class JoinCommand(ParticipantOptions, WorkOptions):
    """Take part in a run with this machine; Ctrl-C leaves at any time.

    Everything else comes with the link. Without LINK it lists the runs that are announced in this local network, to
    choose one.
    """

    link: str | None = argument("LINK", LINK_HELP, default=None, check=checked_link)
    only: str | None = option(
        'Take part only then, such as "22:00-07:00", in local time.', default=None, metavar="HOURS"
    )
    max_traffic: str | None = option("Up and down together, such as 50GB/month.", default=None, metavar="SIZE/PERIOD")
    pause: bool = option("Let the peers of this machine pause, from another terminal.", "--pause", default=False)
    unpause: bool = option("End such a pause.", "--unpause", default=False)
    yes: bool = option("Take part without being asked, as without a terminal.", "--yes", "-y", default=False)
    role: str = option("trainer, client (never dialled), auxiliary or monitor.", default="trainer", rare=True)
    devices: str = option(
        "Compute on all GPUs of this machine, or so many, as one peer.", default="all", metavar="all|N", rare=True
    )
    data: tuple[str, ...] = option(
        "Train on own .txt or .jsonl files, folder of pictures, or (split learning) .csv files with one sample a line, "
        "its class at the end; may be repeated.",
        default=(),
        rare=True,
    )
    part: int | None = option(
        "(split learning) Which part of the run's example this client has (default: by its key).",
        default=None,
        least=1,
        metavar="N",
        rare=True,
    )
    evaluate: bool = option(
        "Measure the model on held-out data beside training, as the host does.", "--evaluate", default=False, rare=True
    )
    base: Path | None = option(
        "Folder with the weights that the run tunes, where this machine has them.", default=None, rare=True
    )
    max_files: str = option(
        "Decline a run whose files take more on this disk.", default="2GB", metavar="SIZE", rare=True
    )
    pause_on_battery: bool = option(
        "Do not take part while this laptop is unplugged.", "--pause-on-battery", default=False, rare=True
    )
    login: str | None = option(
        "Log in as this person, where the run asks for it.", default=None, metavar="NAME", rare=True
    )
    secret: Path | None = option(
        "File with the code or access token to log in with (default: ask).", default=None, rare=True
    )
    leave_after_steps: int | None = option(
        "Leave once this machine took part in N steps (split learning: batches).",
        default=None,
        least=1,
        metavar="N",
        rare=True,
    )

    def __post_init__(self) -> None:
        if self.pause and self.unpause:
            raise ConfigurationError("--pause and --unpause exclude each other")
        if (self.pause or self.unpause) and self.link is None:
            raise ConfigurationError("name the LINK of the run, of which the peers of this machine are to pause")

    def work(self) -> Work:
        """See `WorkOptions`; with the devices of this machine, and its own data."""
        return msgspec.structs.replace(super().work(), devices=self.devices, data=self.data)

    def way(self, usual: str) -> str:
        """See `OutputOptions`."""
        return "minga.cli.taking_part.availability:run_pause" if self.pause or self.unpause else usual


@command(TAKE_PART, "minga.cli.taking_part.status:run_status", "minga status LINK --watch")
class StatusCommand(LookingOptions):
    """Look at a run without taking part: step, loss, peers, speed.

    It looks for some seconds, with --plot for a minute, with --watch until Ctrl-C. Of a run on this machine it shows
    the history.
    """

    run: str = argument("RUN", f"{RUN_HELP} Or its history.jsonl.", check=checked_run)
    watch: bool = option("Stay and update until Ctrl-C.", "--watch", default=False)
    plot: Path | None = option("Draw loss against time and samples into this PNG.", default=None)


@command(TAKE_PART, "minga.cli.taking_part.dashboard:run_watch", "minga dashboard LINK")
class DashboardCommand(LookingOptions):
    """Serve web pages about a run: loss, speed, peers, how to join.

    It has rounds, a leaderboard and an API as well.
    """

    link: str = argument("LINK", LINK_HELP, check=checked_link)
    listen: str = option("Where it listens; port 0 is any.", default="127.0.0.1:8471", metavar="ADDRESS:PORT")
    public: bool = option(
        "Beyond this machine, every viewer may look; without it each needs a token.", "--public", default=False
    )
    url: str | None = option("Where viewers reach it, behind a proxy: https://… (default: --listen).", default=None)
    leash: bool = option("End with the process that started this one.", "--leash", default=False, hidden=True)


@command(TAKE_PART, "minga.cli.diagnosing.doctor:run_doctor", "minga doctor LINK")
class DoctorCommand(NetworkOptions):
    """Check this machine, and with a LINK the way into its run.

    It names the hop that fails and what to do.
    """

    link: str | None = argument("LINK", "The link of a run, to check the way into it.", default=None)


@command(TAKE_PART, "minga.cli.keeping.models:run_export", "minga export LINK --out my-model")
class ExportCommand(LookingOptions):
    """Write the model of a run in the format that transformers loads.

    It is that of a live run, or of the newest checkpoint in a run's folder.
    """

    run: str = argument("RUN", RUN_HELP, check=checked_run)
    out: Path = option("New or empty directory for the model.")
    merge: bool = option("(adapters) The base with the adapters in it.", "--merge", default=False)


@command(TAKE_PART, "minga.cli.keeping.models:run_sample", 'minga sample LINK "In the beginning" --n 3 --top-k 40')
class SampleCommand(LookingOptions):
    """Generate text or pictures with the model of a run."""

    run: str = argument("RUN", RUN_HELP, check=checked_run)
    prompts: tuple[str, ...] = argument("PROMPT", "The text to continue, or the caption to draw.")
    n: int = option("Samples of each prompt.", "--n", default=1, least=1, most=4096)
    temperature: float = option("Below 1: likelier ones; 0: likeliest.", default=1.0, least=0.0, most=100.0)
    top_k: int = option("Choose among the N likeliest; 0: among all.", default=0, least=0, most=2**31)
    top_p: float = option("Choose among the likeliest, up to this probability.", default=1.0, least=0.0, most=1.0)
    guidance: float = option("(images) Above 1: closer to the prompt.", default=1.0, least=0.0, most=1000.0)
    length: int = option("(texts) At most so many new tokens.", default=64, least=1, most=2**20)
    seed: int = option("Equal seeds, equal samples.", default=0, least=0, most=2**63 - 1)
    out: Path | None = option("(images) The file for them (default: samples.png).", default=None, metavar="GRID.PNG")


USUAL_REPEAT = 3


@command(
    TAKE_PART,
    "minga.cli.keeping.models:run_evaluate",
    "minga evaluate my-model --task ncc --data topics",
    slow_imports=True,
)
class EvaluateCommand(OutputOptions, ThreadsOptions):
    """Try a trained model on a task, beside an untrained one.

    Named by the folder of its run it is measured on held-out data instead.
    """

    model: str = argument("MODEL", "A folder of `minga export`, OWNER/NAME on the hub, or a run's folder or id.")
    task: str | None = option(
        "Of language models: ner (named entities), ncc (classes of texts). Default: the first of the recipe.",
        default=None,
    )
    data: str | None = option("The examples of the task: a file, a folder or hub:OWNER/NAME[:CONFIG].", default=None)
    repeat: int = option(
        "Train and measure N times, each time with another seed.", default=USUAL_REPEAT, least=1, most=100
    )
    examples: int | None = option(
        "Train on so many examples only (default: on all of the training part).", default=None, least=1
    )


# ---- organise


@command(ORGANISE, "minga.cli.planning.new:run_new", "minga new causal-lm --size small > run.toml")
class NewCommand(OutputOptions):
    """Print a run spec to begin with; without RECIPE, list the recipes.

    It has every setting, with its meaning and what is allowed. With --notebook it writes a notebook for Colab, Kaggle
    or Jupyter instead, which hosts a run or, with --link, takes part in one.
    """

    recipe: str | None = argument("RECIPE", "The recipe of the run.", default=None)
    size: str | None = option("One of its sizes (default: what a demo on two CPU cores takes).", default=None)
    notebook: Path | None = option("Write this notebook instead.", default=None, metavar="FILE.IPYNB")
    link: str | None = option("(--notebook) The run in which it takes part.", default=None)
    install: str | None = option(
        "(--notebook) Where it gets minga: a wheel's address, a folder or a file (default: it holds a copy).",
        default=None,
        metavar="SOURCE",
        rare=True,
    )

    def __post_init__(self) -> None:
        if self.recipe is None and self.size is not None:
            raise ConfigurationError("--size: of which RECIPE?")
        if self.notebook is None and (self.link or self.install):
            raise ConfigurationError("--link and --install: only with --notebook")
        if self.notebook is not None and (self.recipe or self.size):
            raise ConfigurationError("--notebook has a run spec of its own: leave RECIPE and --size out")


@command(
    ORGANISE,
    "minga.cli.taking_part.host:run_host",
    "minga host run.toml --port 4433 --announce 203.0.113.7:4433",
    slow_imports=True,
)
class HostCommand(ParticipantOptions, WorkOptions):
    """Begin a run, or go on with one; prints ONE link for all others.

    It stays as monitor, seed and auxiliary. Without RUN, in the folder of a run, it goes on with that run.
    """

    run: Path | None = argument(
        "RUN",
        "A run spec in TOML, which begins a run (`minga new albert` prints one); or the folder or id of a run on this "
        "machine, to go on with it.",
        default=None,
    )
    role: str = option("auxiliary (no gradients; in byzantine runs trainer), trainer, or monitor.", default="auxiliary")
    port: int = option("UDP port; keep it, and the link stays valid. 0: any.", default=0, least=0, most=65535)
    announce: tuple[str, ...] = option(
        "Address at which others reach this machine behind NAT; may be repeated.", default=(), metavar="IP[:PORT]"
    )
    dashboard: bool = option("Serve web pages about the run, too.", "--dashboard", default=False)
    announce_lan: bool = option(
        "Announce the run in this local network: `minga join` there lists it.", "--announce-lan", default=False
    )
    begin_from: str | None = option(
        "Begin with the parameters of this run, by folder or id; see model.init_from.",
        "--from",
        default=None,
        metavar="RUN",
        rare=True,
    )
    peers: str | None = option(
        'For training.strategy = "auto": who will take part, as `minga plan --peers` takes them.',
        default=None,
        rare=True,
    )
    qr: bool = option("Show the link as a QR code, too.", default=True, rare=True)
    landing_page: Path | None = option(
        "Write a web page with the link and how to join, and beside it minga.",
        default=None,
        metavar="OUT.HTML",
        rare=True,
    )
    dashboard_listen: str = option(
        "Where the dashboard listens; port 0 is any.", default="127.0.0.1:8471", metavar="ADDRESS:PORT", rare=True
    )
    dashboard_url: str | None = option(
        "Where viewers reach the dashboard, behind a proxy: https://…", default=None, rare=True
    )
    dashboard_public: bool = option(
        "Beyond this machine, every viewer may look at the dashboard.", "--dashboard-public", default=False, rare=True
    )

    def peer_options(self) -> PeerOptions:
        """See `ParticipantOptions`."""
        return replace(super().peer_options(), announce=self.announce)


@command(ORGANISE, "minga.cli.access.amend:run_amend", "minga amend LINK optimizer.learning_rate=0.001")
class AmendCommand(OrderOptions):
    """Change settings of a running run, or pause, resume or stop it.

    All members apply a change from the same step on. A paused run holds its state: members stay connected and take no
    step.
    """

    changes: tuple[str, ...] = argument(
        "CHANGE", "Such as optimizer.learning_rate=0.001; or one of pause, resume, stop.", default=()
    )
    at_step: int | None = option("From which global step on (default: soon).", "--at-step", default=None)
    with_present: bool = option(
        "(resume) The run lost more than half of its members at once, for good: go on with those that are there.",
        "--with-present",
        default=False,
    )


@command(ORGANISE, "minga.cli.access.members:run_admit", "minga admit LINK --uses 5 --valid 7d")
class AdmitCommand(OrganiserOptions):
    """Print a link that admits people to a run for members.

    It admits those who hold it, or with PEER only that peer. Given a link that other organisers have signed, it adds a
    signature to it.
    """

    peer: str | None = argument("PEER", "Admit this peer id only.", default=None)
    uses: int = option("How many peers may use the invitation.", default=1)
    valid: str = option("How long it and the access that it gives last, such as 12h or 30d.", default="30d")


@command(ORGANISE, "minga.cli.access.members:run_members", "minga members LINK")
class MembersCommand(OrderOptions):
    """Show who is in, by which invitation, and who was banned."""

    transfer: tuple[str, ...] = option(
        "Instead: hand the organisers' role over to this key; may be repeated.", default=()
    )
    needed: int = option("(--transfer) How many of them have to sign.", default=1, least=1, most=7)


@command(ORGANISE, "minga.cli.access.members:run_ban", "minga ban LINK PEER")
class BanCommand(OrganiserOptions):
    """End a peer's access to a run, or that of an address range."""

    who: str | None = argument(
        "WHO",
        "The id of a peer or an invitation, or its first ten digits; or an invitation link. With an invitation: all "
        "peers that came by it.",
        default=None,
    )
    addresses: str | None = option("Also an address range for a time, such as 203.0.113.0/24.", "--range", default=None)
    valid: str = option("(--range) How long, such as 12h or 30d.", "--for", default="7d")
    reason: str = option("Why, in a few words that everybody can read.", default="")


@command(
    ORGANISE,
    "minga.cli.access.authority:run_authority",
    "minga authority INVITATION --allow allow.toml --url https://login.example.org",
)
class AuthorityCommand(OutputOptions):
    """Give access to a run for members to people who log in.

    Each gets access for some hours at a time.
    """

    link: str | None = argument(
        "INVITATION", "What `minga admit LINK --uses 500` made; - reads it from standard input.", default=None
    )
    allow: Path | None = option("TOML file of those who may take part.", default=None)
    listen: str = option("Where to listen; port 0 is any.", default="127.0.0.1:8470")
    url: str | None = option(
        "Where people reach it, behind a proxy: https://… (default: where it listens).", default=None
    )
    roster: Path | None = option("Where it keeps who has which peers (default: beside --allow).", default=None)
    certificate: Path | None = option("PEM file for TLS, without a proxy.", "--cert", default=None)
    key: Path | None = option("(--cert) PEM file with its private key.", default=None)
    new_code: str | None = option(
        "Instead: make a code for a person of the list, and exit.", default=None, metavar="NAME"
    )
    leash: bool = option("End with the process that started this one.", "--leash", default=False, hidden=True)

    def __post_init__(self) -> None:
        if self.new_code is None and (self.link is None or self.allow is None):
            raise ConfigurationError("name an INVITATION and a file with --allow, or a person with --new-code")


@command(ORGANISE, "minga.cli.keeping.runs:run_runs", "minga runs")
class RunsCommand(OutputOptions):
    """List the runs on this machine; back up, restore or remove one."""

    directory: Path | None = option("Where they are (default: the user's data folder).", default=None, rare=True)


@command(ORGANISE, "minga.cli.keeping.runs:run_remove", "minga runs remove 5ff8c8e8")
class RunsRemoveCommand(OutputOptions):
    """Delete the folder of a run."""

    run: str | None = argument("RUN", "How the run's id begins.", default=None)
    temporary: bool = option(
        "Instead: all files of peers with a key for one time only that were killed.",
        "--temporary",
        default=False,
    )
    yes: bool = option("Delete it without being asked.", "--yes", "-y", default=False)
    directory: Path | None = option("Where runs are (default: the user's data folder).", default=None, rare=True)

    def __post_init__(self) -> None:
        if (self.run is None) is not self.temporary:
            raise ConfigurationError("name a RUN, or give --temporary")


@dataclass(frozen=True, kw_only=True)
class BackupOptions(OutputOptions):
    """What both ways of a backup have."""

    identity: Path | None = option(
        "The organiser's key file (default: in the user's data folder).", default=None, rare=True
    )
    passphrase_file: Path | None = option("File with the passphrase; without it you are asked.", default=None)


@command(ORGANISE, "minga.cli.keeping.runs:run_backup", "minga runs backup RUN --out my-run.backup")
class RunsBackupCommand(BackupOptions):
    """Write key, files and newest checkpoint of a run into one encrypted file."""

    run: str = argument("RUN", KEPT_RUN_HELP)
    out: Path = option("The file to write, which must not be there.")


@command(ORGANISE, "minga.cli.keeping.runs:run_restore", "minga runs restore my-run.backup")
class RunsRestoreCommand(BackupOptions):
    """Restore a run from a backup file."""

    file: Path = argument("FILE", "What `minga runs backup` wrote.")
    directory: Path | None = option("Where the run goes (default: the user's data folder).", default=None, rare=True)


@command(ORGANISE, "minga.cli.keeping.receipts:run_receipts", "minga runs receipts RUN --out receipts.bin")
class RunsReceiptsCommand(LookingOptions):
    """Show what members attest of each peer's contribution, or write this machine's to a file.

    That is samples, steps and bytes reduced; `minga runs verify` checks such a file.
    """

    run: str = argument("RUN", RUN_HELP, check=checked_run)
    out: Path | None = option(
        "Write a file about this machine's peer that anybody can check, of a run on this machine.", default=None
    )


@command(ORGANISE, "minga.cli.keeping.receipts:run_verify", "minga runs verify receipts.bin --of LINK")
class RunsVerifyCommand(OutputOptions):
    """Check a file of receipts, or why members of a run were banned.

    Of a file: signatures, membership, and what the members attest. Of a Byzantine-tolerant run on this machine: the
    evidence in its folder. Both offline.
    """

    what: str = argument("FILE|RUN", f"A file of `minga runs receipts`; or a run. {KEPT_RUN_HELP}")
    of: str | None = option(
        "The run that the receipts should be of: its link, its folder or id, or an archive.", default=None
    )


# ---- plan and simulate


USUAL_PRECISION, MEASURED_S = "auto", 5.0


@command(
    PLAN,
    "minga.cli.planning.plan:run_plan",
    'minga plan --model albert-large --peers "20x(t4, up=50Mbit, down=200Mbit)"',
)
class PlanCommand(LookingOptions, ThreadsOptions):
    """Forecast a run with given machines, or explain the plan of one.

    With --model and --peers it forecasts; with --model and --memory it says what fits into a device; with --model and
    --measure it measures this machine, which `--peers "(this, …)"` then means. Of a live run, by its LINK, or of a
    SCENARIO it shows who reduces how much and why.
    """

    source: str | None = argument("SCENARIO|LINK", "A scenario of `minga sim`, or a run's link.", default=None)
    model: str | None = option("A model (gpt2, …), 18M (parameters), a run spec or .safetensors file.", default=None)
    peers: str | None = option(
        'Such as "20x(t4, up=50Mbit, down=200Mbit); 4x(a100, 1Gbit); (aux, 1Gbit)".', default=None
    )
    memory: str | None = option("What one device has, such as 8GB: which micro-batch fits.", default=None)
    measure: bool = option(
        f"Measure how fast this machine trains --model (default: {USUAL_MODEL}).", "--measure", default=False
    )
    target_batch: int | None = option(
        "(--peers) Samples of a step (default: 4096; of adapters 128).", default=None, least=1, most=2**24
    )
    codec: str | None = option(
        '(--peers) adaptive, float16, int8, "int4(block=64)", topk, … (default: the best).', default=None
    )
    strategy: str | None = option(
        "synchronous, delayed, local, leader, elastic or demo (default: the best).", default=None
    )
    optimizer: str | None = option(
        "lamb, adamw, muon, sgd, lars or larc, for memory (default: lamb; for adapters adamw).", default=None
    )
    fine_tune: bool = option("Train adapters on --model, which is frozen.", "--fine-tune", default=False)
    base_bits: int | None = option("(--fine-tune) The frozen model in 16, 8 or 4 bits (default: 4).", default=None)
    rank: int | None = option("(--fine-tune) Rank of the adapters (default: 16).", default=None, least=1, most=4096)
    tokens: int | None = option("Tokens of a sample (default: by model).", default=None, least=1, most=1 << 20)
    precision: str = option("single, half, or auto: half where `minga join` computes in it.", default=USUAL_PRECISION)
    state_bits: int | None = option("(--memory) 8 or 32 bits for each moment.", default=None, rare=True)
    offload: bool = option(
        "(--memory) The optimizer works in RAM, as with `minga join`.", "--offload", default=False, rare=True
    )
    checkpoint_activations: bool = option(
        "(--memory) Activations are computed twice.", "--checkpoint-activations", default=False, rare=True
    )
    device: tuple[str, ...] = option(
        "(--measure) Only this device; may be repeated (default: all).", default=(), rare=True
    )
    seconds: float = option(
        "(--measure) How long to measure each micro-batch.", default=MEASURED_S, least=0.1, most=600.0, rare=True
    )

    def __post_init__(self) -> None:
        ways = {"--peers": self.peers, "--memory": self.memory, "--measure": self.measure or None}
        chosen = [name for name, value in ways.items() if value is not None]
        if self.source is not None and (self.model or chosen):
            raise ConfigurationError(
                "give a SCENARIO, a LINK or --model with --peers, --memory or --measure, not both; a run spec goes "
                "behind --model"
            )
        if self.source is None and (len(chosen) != 1 or (self.model is None and not self.measure)):
            raise ConfigurationError("give a SCENARIO, a LINK or --model with one of --peers, --memory and --measure")
        way = chosen[0] if chosen else "a SCENARIO or LINK, which says what its run does"
        idle = [name for name, (value, ways_of_it) in self._given().items() if value and way not in ways_of_it]
        if idle:
            raise ConfigurationError(f"{', '.join(idle)}: not with {way}")
        if not self.fine_tune and (self.base_bits or self.rank):
            raise ConfigurationError("--base-bits and --rank: only with --fine-tune")

    def way(self, usual: str) -> str:
        """See `OutputOptions`."""
        if self.measure:
            return "minga.cli.planning.device:run_measure"
        if self.memory is not None:
            return "minga.cli.planning.device:run_memory"
        return usual if self.source is not None else "minga.cli.planning.forecast:run_forecast"

    def _given(self) -> dict[str, tuple[object, tuple[str, ...]]]:
        """The options that not each way takes, with those that do."""
        planned, memory, measured = "--peers", "--memory", "--measure"
        return {
            "--target-batch": (self.target_batch, (planned,)),
            "--codec": (self.codec, (planned,)),
            "--strategy": (self.strategy, (planned, memory)),
            "--optimizer": (self.optimizer, (planned, memory)),
            "--fine-tune": (self.fine_tune, (planned, memory)),
            "--base-bits": (self.base_bits, (planned, memory)),
            "--rank": (self.rank, (planned, memory)),
            "--tokens": (self.tokens, (planned, memory, measured)),
            "--precision": (self.precision != USUAL_PRECISION, (planned, memory)),
            "--seconds": (self.seconds != MEASURED_S, (measured,)),
            "--state-bits": (self.state_bits, (memory,)),
            "--offload": (self.offload, (memory,)),
            "--checkpoint-activations": (self.checkpoint_activations, (memory,)),
            "--device": (self.device, (measured,)),
            "--threads": (self.threads, (measured,)),
        }


@command(PLAN, "minga.cli.simulating:run_sim", "minga sim home-150 --set peers.home.count=20", slow_imports=True)
class SimCommand(OutputOptions):
    """Simulate a swarm on virtual time; without a scenario, list them.

    It runs the production code, with simulated lines, churn and faults. With --replay it shows a log step by step: who
    led, who took part, where the time went, faults and recoveries.
    """

    source: str | None = argument("FILE|NAME", "A scenario in TOML, or one that comes with minga.", default=None)
    changes: tuple[str, ...] = option(
        "Another value, such as peers.home.count=20; may be repeated.", "--set", default=(), metavar="KEY=VALUE"
    )
    sweep: tuple[str, ...] = option(
        "One run for each value; several: for each combination.", default=(), metavar="KEY=A,B,C"
    )
    plot: Path | None = option("Draw loss, round anatomy, peers and traffic into this folder.", default=None)
    log: Path | None = option("Write the event log, for --replay.", default=None)
    replay: Path | None = option("Instead: show what `--log` wrote.", default=None, metavar="LOG")
    step: int | None = option("(--replay) Only this step, with all that happened in it.", default=None, least=1)

    def __post_init__(self) -> None:
        if self.replay is not None and (self.source or self.changes or self.sweep or self.plot or self.log):
            raise ConfigurationError("--replay shows a log that is there: only --step goes with it")
        if self.step is not None and self.replay is None:
            raise ConfigurationError("--step: only with --replay")

    def way(self, usual: str) -> str:
        """See `OutputOptions`."""
        return usual if self.replay is None else "minga.cli.simulating:run_replay"
