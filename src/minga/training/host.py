"""The way into a run with a run spec: `minga.host` begins a run, or goes on with one that lies on this machine."""

from __future__ import annotations

import contextlib
import logging
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from minga.access.access_files import AccessFiles
from minga.core.errors import ConfigurationError, StorageError, reason_of
from minga.core.files import Content, store
from minga.core.spec.run_spec import RunSpec
from minga.core.wheel import own_wheel
from minga.identity.keys.keys import Identity
from minga.identity.links.signed_spec import SignedRunSpec
from minga.keeping.archive import Archive, target_of
from minga.keeping.choice_of_key import to_begin
from minga.keeping.known_runs import OwnSettings, known_run
from minga.keeping.rejoin import HostLock
from minga.training.join import Door, PeerOptions, checked_options, enter, made, network_settings
from minga.training.life.founding import FoundingRules
from minga.training.own_access import RunAccess
from minga.training.peer import Peer
from minga.training.plugins_of_run import check_plugins, with_one_spelling, with_origins
from minga.training.session import Session
from minga.training.status.status_reader import StatusReader
from minga.training.transfer.run_files import describe_file, whole_digest

logger = logging.getLogger("minga.training")

_WRITTEN_BY_HOST = frozenset({"begun", "files", "plugins", "wheel"})
"""Settings that no organiser writes."""


class _Run(NamedTuple):
    """A run that this machine hosts: what is published of it, and where it lies."""

    signed: SignedRunSpec
    spec: RunSpec
    directory: Path

    def files(self) -> dict[str, Path]:
        """Where the files lie that travel with the run."""
        return {name: self.directory / "files" / name for name in self.spec.files}


def host(
    spec: RunSpec | Mapping[str, Any] | Path | str | None = None,
    options: PeerOptions | None = None,
    *,
    files: Mapping[str, Content] | None = None,
    resume: Path | str | None = None,
    gives_state: bool = False,
) -> Peer:
    """Begin a run, or go on with one: the peer that is returned has the `link` for all others.

    `spec` is a run spec, its settings by name, or the path of a TOML file. Each call begins another run, of another run
    id, though the settings may be equal. `resume` is the folder of a run that this machine hosted before, and goes on
    with that one; `spec` and `files`, if given, must agree with it. The link stays valid as long as any peer that it
    names can be reached. A run that is hosted again has the same port, unless `options` say otherwise, and the settings
    of its organiser's machine that are not published. `files` travel with the run: their contents by
    name, or, for large ones, paths of files on this machine, which are copied.

    With an `ephemeral` key and no directory of its own, the peer leaves nothing behind on this machine. Nor does a run
    that cannot begin. A monitor of a run with a recipe begins it if the caller `gives_state`, by `Peer.begin_with`.

    Raises `LocalError`s only: `ConfigurationError` if the run is hosted from this folder already, if the key that
    began it is not here or not free, if a package that the spec names is missing, or if an argument makes no sense.
    """
    options = checked_options(options)
    given = None if spec is None else read_spec(spec)
    own = OwnSettings(options.announce).updated(OwnSettings() if given is None else OwnSettings.of(given))
    with contextlib.ExitStack() as held:
        if resume is not None:
            run = _resumed(Path(resume), given, files)
            identity = options.hold_organiser(run.signed.organiser, held)
            own = OwnSettings.read(run.directory).updated(own)
        elif given is not None:
            identity = options.hold_identity(held, to_begin(given.security.organisers))
            run = _begun(given, dict(files or {}), identity, options.placed(held))
        else:
            raise ConfigurationError("host what? Pass a run spec, or resume=DIRECTORY to go on with a run")
        try:
            if resume is None:
                _lay_files(run, files or {})
            target = None if own.upload_to is None else target_of(own.upload_to)
            own.write(run.directory)
            archive = Archive(own.archive_every, target) if own.archive_every else None
            options = replace(options, announce=own.announce)
            _check_founder(run.spec, options, gives_state=gives_state)
            return _enter(run, options, identity, archive, held)
        except BaseException:
            if resume is None:  # nobody knows of this run, which would be offered to go on with
                shutil.rmtree(run.directory, ignore_errors=True)
            raise


def read_spec(spec: RunSpec | Mapping[str, Any] | Path | str) -> RunSpec:
    """A run spec from whatever says one. Raises `ConfigurationError`."""
    if isinstance(spec, RunSpec):
        return spec
    if isinstance(spec, Mapping):
        return RunSpec.from_mapping(spec)
    if isinstance(spec, Path | str):
        return RunSpec.from_file(spec)
    raise ConfigurationError(
        f"a run spec is a minga.RunSpec, a mapping of its settings, or the path of a TOML file, not a "
        f"{type(spec).__name__}"
    )


def _begun(spec: RunSpec, files: Mapping[str, Content], identity: Identity, options: PeerOptions) -> _Run:
    try:
        entries = {name: describe_file(content) for name, content in files.items()}
    except OSError as error:
        raise ConfigurationError(f"{error.filename}: a file of the run cannot be read: {reason_of(error)}") from error
    own = own_wheel()
    published = with_origins(spec).published(entries).begin(identity.peer_id, None if own is None else own.reference)
    return _Run(SignedRunSpec.sign(published, identity), published, made(options.run_directory(published.run_id)))


def _lay_files(run: _Run, files: Mapping[str, Content]) -> None:
    for name, path in run.files().items():
        store(path, files[name])


def _resumed(directory: Path, given: RunSpec | None, files: Mapping[str, Content] | None) -> _Run:
    known = known_run(directory)
    run = _Run(known.signed, known.spec, directory)
    HostLock.take(directory).release()  # a host that runs holds the organiser's key, too: it is named, not the key
    check_plugins(run.spec)
    if given is not None and (wrong := _differences(given, run.spec)):
        raise ConfigurationError(
            f"the run in {directory} was begun with other settings of {', '.join(wrong)}; a run keeps its settings: "
            "leave the spec out, or begin a new run without resume"
        )
    for name, path in run.files().items():
        try:
            found = [whole_digest(content) for content in (path, *([files[name]] if files and name in files else []))]
        except OSError as error:
            raise StorageError(f"{path}, a file of this run, cannot be read: {reason_of(error)}") from error
        if any(digest != run.spec.files[name].blake3 for digest in found):
            raise ConfigurationError(f"the file {name} is not the one with which this run was begun")
    logger.info("going on with the run %r: %s", run.spec.name, known.progress)
    return run


def _differences(given: RunSpec, spec: RunSpec) -> list[str]:
    """The sections of `given` that are not as in `spec`."""
    ours, theirs = (each.published().model_dump(mode="json") for each in (with_one_spelling(given), spec))
    return sorted(name for name in ours if name not in _WRITTEN_BY_HOST and ours[name] != theirs[name])


def _check_founder(spec: RunSpec, options: PeerOptions, *, gives_state: bool) -> None:
    """A run that its organiser founds needs a state of the organiser's peer, or the recipe's."""
    rules = FoundingRules.of(spec)
    if options.role == "monitor" and rules.by_organiser and not (gives_state and rules.alike):
        raise ConfigurationError(
            "as a monitor this host has no model, so it cannot give the run its first state. Host it with another "
            'role, or write [state] founder = "first" into the run spec: then the first peer that trains gives it'
        )


def _enter(
    run: _Run, options: PeerOptions, identity: Identity, archive: Archive | None, held: contextlib.ExitStack
) -> Peer:
    network = network_settings(options, run.spec.network.relay)
    access = RunAccess(AccessFiles(run.directory), known=(run.signed, run.spec), keeps=not options.ephemeral)

    async def files(_: Session, __: RunSpec, ___: Path | None) -> dict[str, Path]:
        return run.files()

    claim = held.enter_context(HostLock.take(run.directory))
    run_id = run.signed.run_id
    door = Door(access.spec, files)
    peer = enter(run_id, options, network, run.directory, [], door, access, identity, held, may_be_alone=True)
    try:
        claim.tell(peer.link)
        if archive is not None:
            peer.checkpointer.archive(archive, StatusReader(peer, from_start=True))
    except BaseException:  # the peer has the key and the lock now, and ends with them
        peer.close()
        raise
    return peer
