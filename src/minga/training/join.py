"""The way into a run by a link: `minga.join`; and what it shares with `minga.host`."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from minga.access.access_files import AccessFiles
from minga.access.admission import Admission
from minga.core.errors import ConfigurationError, IdentityError, LinkError, StorageError, UnreachableError, reason_of
from minga.core.rate_cap import RateCap
from minga.core.spec.run_spec import RunSpec
from minga.core.urls import is_loopback
from minga.identity.keys.keys import Identity, Rank
from minga.identity.links.links import Link
from minga.identity.links.signed_spec import SignedRunSpec
from minga.keeping.availability import using
from minga.keeping.choice_of_key import to_join
from minga.keeping.known_runs import FOLDER_DIGITS, TEMPORARY, runs_folder
from minga.keeping.rejoin import MAX_PEERS, MAX_PLACES, HostLock, KnownAddresses, RejoinFile, merged, own_port
from minga.login.credentials import Credentials, LoginUser
from minga.network.interface import Address, PeerId
from minga.network.iroh.network import IrohNetwork, NetworkSettings
from minga.network.rpc.handshake import Role
from minga.network.rpc.run_clock import RunClock
from minga.training.bridge.loop_thread import LoopThread
from minga.training.own_access import RunAccess
from minga.training.peer import Peer
from minga.training.plugins_of_run import check_plugins
from minga.training.prospect import Consider, look
from minga.training.session import Session, SessionSettings
from minga.training.state.checkpoints import CheckpointStore
from minga.training.transfer.run_files import fetch_files


@dataclass(frozen=True)
class PeerOptions:
    """The settings of a peer that the owner of its machine may choose; everything else comes with the run.

    role: "trainer" (default), "client" (never dialled, never aggregates), "auxiliary" (no gradients) or "monitor".
    identity: a key file; None takes the one in the user's data folder. `ephemeral` makes a key for this time only.
    directory: where files and checkpoints of runs are kept; None takes the user's data folder, and there, for a peer
    with an `ephemeral` key, a folder that is deleted when the peer is closed.
    max_upload, max_download: limits that are kept to, such as "10Mbit" or "10Mbit, 50Mbit 23:00-07:00" in local time; a
    number is bytes per second, None no limit.
    voucher: a key file (None: the one in the user's data folder); for a monitor with an `ephemeral` key in a run for
    members, which its key vouches for.
    host, port: local address to bind; by default all interfaces and the port of the last time, or any that is free.
    A peer that is bound to this machine alone (host 127.0.0.1) uses no relay, whatever the run spec says.
    announce: addresses at which others reach this peer though its machine does not know of them, such as "203.0.113.7"
    or "203.0.113.7:4433": a forwarded port, or the outer address of 1:1 NAT.
    """

    role: Role = "trainer"
    identity: Path | str | None = None
    ephemeral: bool = False
    directory: Path | str | None = None
    max_upload: RateCap | str | float | None = None
    max_download: RateCap | str | float | None = None
    host: str | None = None
    port: int = 0
    voucher: Path | str | None = None
    announce: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("identity", "directory", "voucher"):
            if not isinstance(value := getattr(self, name), Path | str | None):
                raise ConfigurationError(f"{name} = {value!r} is no path")
        if not isinstance(self.port, int) or not 0 <= self.port <= 65_535:
            raise ConfigurationError(f"port = {self.port!r} is no whole number from 0 to 65535")
        if self.role not in get_args(Role):
            raise ConfigurationError(f"role = {self.role!r} is none of {', '.join(get_args(Role))}")
        self.caps()

    def caps(self) -> tuple[RateCap | None, RateCap | None]:
        """The limits of upload and download."""
        named = (("max_upload", self.max_upload), ("max_download", self.max_download))
        upload, download = (None if value is None else RateCap.parse(value, name) for name, value in named)
        return upload, download

    def hold_identity(self, held: contextlib.ExitStack, rank: Rank) -> Identity:
        """This peer's key, of those of this machine by `rank` where no file is named; a key file is held for this
        process alone, as long as `held` is open.
        """
        if self.ephemeral:
            return Identity.generate()
        path = _path(self.identity)
        return held.enter_context(Identity.acquire(path, rank if path is None else None)).identity

    def hold_organiser(self, organiser: str, held: contextlib.ExitStack) -> Identity:
        """The key that hosts a run, wherever it lies beside this peer's. Raises `LocalError`s."""
        files = {} if self.ephemeral else Identity.stored(_path(self.identity), {organiser})
        for file in files:
            if (key := Identity.hold(file)) is not None:
                return held.enter_context(key).identity
        if files:
            raise ConfigurationError(
                f"another peer on this machine uses the key that hosts this run, {organiser[:10]}: end that peer"
            )
        raise ConfigurationError(
            f"the key that hosts this run, {organiser[:10]}, is not among those of this machine: name its file, by "
            "--identity FILE or PeerOptions(identity=FILE); if it is not yours, join by the organiser's link"
        )

    @property
    def keeps_files(self) -> bool:
        """Whether who joins leaves files that lead back into the run: not who only looks on, or forgets its key."""
        return not self.ephemeral and self.role != "monitor"

    @property
    def runs_directory(self) -> Path:
        """Where the folders of runs lie."""
        return runs_folder(_path(self.directory))

    def run_directory(self, run_id: str) -> Path:
        """The folder of one run; it may be missing."""
        return self.runs_directory / run_id[:FOLDER_DIGITS]

    def placed(self, held: contextlib.ExitStack) -> PeerOptions:
        """These options; for a peer whose key is for this time only, and that names no directory, with one that is
        deleted when `held` is closed. It lies among the runs, or, if that folder cannot be written, among temporary
        files. Raises `StorageError` if there is no room for it either.
        """
        if not self.ephemeral or self.directory is not None:
            return self
        try:
            with contextlib.suppress(OSError):
                self.runs_directory.mkdir(parents=True, exist_ok=True)
                return replace(self, directory=_temporary(self.runs_directory, held))
            return replace(self, directory=_temporary(None, held))
        except OSError as error:
            raise StorageError(
                f"no folder can be made for this peer: {reason_of(error)}. Name one that can be written, by "
                "--directory DIR or PeerOptions(directory=...)"
            ) from error


def join(
    link: Link | str,
    options: PeerOptions | None = None,
    person: LoginUser | None = None,
    *,
    with_files: bool = True,
    consider: Consider | None = None,
    probes: bool = True,
) -> Peer:
    """Join the run that a link invites to. Blocks until the run was found and its files are here.

    `consider` is shown the run before its files are fetched, and raises to decline, or says in which folder of this
    machine some of them lie. The state of the model is fetched
    later still, when an optimizer begins to take part. With `probes` the peer then fills its line now and then, for
    less than a second in each direction, to learn what it carries; without, rounds alone tell.

    A peer that only watches can do without the files that ship with the run (`with_files`). In a run for members the
    link admits the peer, or the token that it showed before. If the link names an authority, the peer logs in there,
    and keeps its access renewed: `person` is asked where its key is not enough. Without one (`Credentials()`) the key
    has to be enough; a monitor does not log in then, nor does a peer whose token of before came without a login and
    still lasts. Organisers need no token: a peer that is known here as one does not log in. A trainer that has a
    checkpoint of the run goes on alone if no peer answers any more.

    Raises `LinkError` for a damaged link, `RemoteError` if no peer in it answers or admits this one, or the authority
    does not, and `ConfigurationError` if `person` cannot say what the authority needs, or if this version of minga
    cannot follow the run spec, or lacks a package that it names.
    """
    link, options = read_link(link), checked_options(options)
    entries = [Address(PeerId(e.peer_id), e.direct, e.relay) for e in link.entries]
    relays = tuple(dict.fromkeys(e.relay for e in link.entries if e.relay is not None))
    network = network_settings(options, relays or "none")
    if person is None and options.role != "monitor":
        person = Credentials()
    needs_plugins = options.role != "monitor"

    async def fetch(session: Session, spec: RunSpec, own: Path | None) -> dict[str, Path]:
        if not with_files:
            return {}
        peers = list(session.node.connected())
        return await fetch_files(session.node, peers, spec.files, directory / "files", own=own)

    with contextlib.ExitStack() as held:
        if options.role == "monitor":  # it keeps nothing as a rule, and knows what this machine knows of the run
            directory = options.run_directory(link.run_id)
        else:
            options = options.placed(held)
            directory = made(options.run_directory(link.run_id))
            held.enter_context(using(directory))
        known = RejoinFile.spec(directory, link)
        if known is not None and needs_plugins:
            check_plugins(known[1])
        vouches = options.role == "monitor" and options.ephemeral
        vouchers = _stored(_path(options.voucher)) if vouches else []
        access = RunAccess(
            AccessFiles(directory), link, known, keeps=options.keeps_files, vouchers=vouchers, person=person
        )

        def find() -> tuple[SignedRunSpec, RunSpec]:
            signed, spec = access.spec()
            if needs_plugins:
                check_plugins(spec)
            return signed, spec

        may_be_alone = (
            known is not None and options.role == "trainer" and bool(CheckpointStore(directory / "checkpoints").steps())
        )
        identity = options.hold_identity(held, to_join(options.runs_directory, link))
        door = Door(find, fetch, consider)
        return enter(
            link.run_id,
            options,
            network,
            directory,
            entries,
            door,
            access,
            identity,
            held,
            may_be_alone=may_be_alone,
            probes=probes,
        )


def made(folder: Path) -> Path:
    """The folder, which is made if it is missing. Raises `StorageError`."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(
            f"the folder {folder} cannot be made: {reason_of(error)}. Name one that can be written, by --directory DIR "
            "or PeerOptions(directory=...), or keep nothing, by --ephemeral or PeerOptions(ephemeral=True)"
        ) from error
    return folder


def _temporary(base: Path | None, held: contextlib.ExitStack) -> Path:
    """A new folder in `base`, or else among the temporary files, that is deleted when `held` is closed."""
    folder = tempfile.TemporaryDirectory(prefix=TEMPORARY, dir=base, ignore_cleanup_errors=True)
    path = Path(held.enter_context(folder))
    held.enter_context(HostLock.take(path))
    return path


def read_link(link: Link | str) -> Link:
    """A link from whatever says one. Raises `LinkError`."""
    if isinstance(link, Link):
        return link
    if isinstance(link, str):
        return Link.parse(link)
    raise LinkError(f"a link is a text that begins with minga1, not a {type(link).__name__}")


def checked_options(options: PeerOptions | None) -> PeerOptions:
    """These options, or by default the usual ones. Raises `ConfigurationError` for anything else."""
    if options is None:
        return PeerOptions()
    if not isinstance(options, PeerOptions):
        raise ConfigurationError(f"options are a minga.PeerOptions, not a {type(options).__name__}")
    return options


def _path(path: Path | str | None) -> Path | None:
    return None if path is None else Path(path)


def _stored(path: Path | None) -> list[Identity]:
    try:
        return list(Identity.stored(path).values())
    except IdentityError:
        if path is not None:
            raise
        return []  # no program asked for it: most runs are open


def network_settings(options: PeerOptions, relay: Literal["none", "public"] | tuple[str, ...]) -> NetworkSettings:
    """A peer that is bound to loopback is found on this machine only: it has no use for a server outside."""
    return NetworkSettings(
        relay="none" if is_loopback(options.host or "") else relay,
        announce=tuple(dict.fromkeys(options.announce)),
        host=options.host,
        port=options.port,
        dialable=options.role != "client",
    )


class Door(NamedTuple):
    """How a peer gets the spec of its run and then the files, and what its owner says between the two: a folder of this
    machine that has some of them, or nothing.
    """

    find: Callable[[], tuple[SignedRunSpec, RunSpec]]
    fetch: Callable[[Session, RunSpec, Path | None], Coroutine[Any, Any, dict[str, Path]]]
    consider: Consider | None = None


def enter(
    run_id: str,
    options: PeerOptions,
    network: NetworkSettings,
    directory: Path,
    entries: Sequence[Address],
    door: Door,
    access: RunAccess,
    identity: Identity,
    held: contextlib.ExitStack,
    *,
    may_be_alone: bool,
    probes: bool = True,
) -> Peer:
    """Start the background thread, appear in the run, and get spec and files by `door`; undo all if that fails.

    The peer takes over what `held` holds.
    """
    rejoin_file = RejoinFile(directory, PeerId(identity.peer_id)) if access.keeps else None
    # Who only looks on, and forgets its key, is led by those that take part from this machine, such as its host.
    here = KnownAddresses(others=RejoinFile.known_here(directory))
    places = here if rejoin_file is None else rejoin_file.places()
    known = merged([*entries, *places.others])
    if not may_be_alone and all(place.peer_id == identity.peer_id for place in known):
        raise UnreachableError(
            "the link names no other peer than this one, which had this key when it hosted the run. To go on with the "
            "run: minga host FOLDER, or minga.host(resume=FOLDER)"
        )
    thread = LoopThread("minga")
    session: Session | None = None

    async def start() -> Session:
        nonlocal session
        opened = await _open_network(identity, network, places.own_port)
        session = Session(
            opened,
            identity,
            run_id,
            SessionSettings(options.role, *options.caps(), directory / "downloads", may_be_alone, probes),
            known,
            Admission(opened.peer_id, RunClock.of(opened, known), token),
            access.meet,
        )
        access.decide(session)
        await session.start()
        return session

    try:
        access.log_in(identity, time.time())
        token = access.token(identity.peer_id, time.time())
        started = thread.call(start())
        access.keep_token(started)  # a person who logged in, and takes part later, does not log in again
        thread.ask(lambda: access.keep_renewed(started))  # now: its owner may think long, and files take long
        signed, spec = thread.ask(door.find)
        own = None
        if door.consider is not None:
            own = door.consider(look(thread, started, spec, signed.organiser))
        files = thread.call(door.fetch(started, spec, own))
        if rejoin_file is not None:
            rejoin_file.keep_spec(signed)
            keeping = rejoin_file.keep_places(lambda: _places_of(started, signed.organiser))
            thread.ask(lambda: started.node.spawn(keeping))
        return Peer(thread, started, signed, spec, files, directory, held)
    except BaseException:
        with contextlib.closing(thread):  # also if Ctrl-C comes once more
            if session is not None:
                for closing in (session.leave, session.node.close):
                    with contextlib.suppress(Exception):  # the first error is the one to tell
                        thread.call(closing(), 1.0)
        raise


async def _open_network(identity: Identity, settings: NetworkSettings, last_port: int) -> IrohNetwork:
    """Bind the port of the last time, where others look for this peer, unless another is asked for or it is taken."""
    if settings.port == 0 and last_port:
        with contextlib.suppress(ConfigurationError):
            return await IrohNetwork.open(identity.seed, replace(settings, port=last_port))
    return await IrohNetwork.open(identity.seed, settings)


def _places_of(session: Session, organiser: str) -> KnownAddresses:
    living_first = reversed(session.board.addresses())
    others = [address for address in living_first if session.leads_in(address.peer_id, organiser)]
    return KnownAddresses(
        own_port(session.node.address), tuple(others[:MAX_PLACES]), tuple(session.board.owners()[:MAX_PEERS])
    )
