"""`minga export`: the model of a run as a directory that its own library loads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from minga.cli.terminal.context import Context
from minga.cli.terminal.peer_options import wire
from minga.core.errors import ConfigurationError, UnreachableError
from minga.core.spec.run_spec import RunSpec
from minga.network.gossip.record_kinds import AddressInfo
from minga.network.interface import PeerId
from minga.recipes.initial import new_model
from minga.recipes.registry import load_recipe
from minga.training.join import PeerOptions, join
from minga.training.peer import Peer
from minga.training.record_kinds import Progress
from minga.training.replica.build_optimizer import build_optimizer
from minga.training.replica.replica import Replica
from minga.training.session import Session
from minga.training.state.checkpoints import CheckpointStore
from minga.training.state.manifest import Manifest
from minga.training.state.snapshot import StateSnapshot
from minga.training.transfer.download import download

DONORS_TIMEOUT_S = 10.0
ATTEMPTS = 5
RETRY_S = 1.0
SPEC_FILE = "run-spec.toml"


@dataclass(frozen=True)
class _Source:
    """A state, and what is needed to make a model of it."""

    spec: RunSpec
    files: Mapping[str, Path]
    snapshot: StateSnapshot | None
    peer: Peer | None = None


def run_export(link: str | None, directory: Path | None, out: Path, peer: PeerOptions, context: Context) -> None:
    """Export from the newest checkpoint below `directory`, or from the peers of a live run."""
    if (link is None) == (directory is None):
        raise ConfigurationError("name either a LINK or a --directory with checkpoints of a run")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigurationError(f"--out {out}: already there and not empty; choose another directory")
    if directory is not None:
        step = _export(_from_disk(directory), out)
    else:
        context.output.say("Looking for the run …")
        with join(str(link), peer) as joined:
            wire(context, joined)
            step = _export(_Source(joined.spec, joined.files, None, joined), out)
    context.output.say(f"{out}: the model after step {step}; load it with transformers.AutoModel.from_pretrained.")
    context.output.summary(ok=True, step=step, out=str(out))


def _export(source: _Source, out: Path) -> int:
    recipe = load_recipe(source.spec)
    model = new_model(recipe)
    optimizer, scheduler = build_optimizer(source.spec.optimizer, model, recipe.decayed)
    replica = Replica(source.spec, optimizer, model=model, scheduler=scheduler)
    snapshot = source.snapshot
    if snapshot is None and source.peer is not None:
        snapshot = _from_swarm(source.peer, replica)
    if snapshot is not None:
        replica.restore(snapshot)
    recipe.export(model, source.files, out, step=replica.step)
    return replica.step


def _from_disk(directory: Path) -> _Source:
    store = directory / "checkpoints"
    if not store.is_dir():
        runs = sorted(path.parent for path in directory.glob("*/checkpoints"))
        hint = "name the folder of one run, which `minga host` and `minga join` show"
        if runs:
            count = "1 run" if len(runs) == 1 else f"{len(runs)} runs"
            hint = f"it has the folders of {count}; name one of them, such as {runs[-1]}"
        raise ConfigurationError(f"--directory {directory}: no folder named checkpoints in it; {hint}")
    checkpoint = CheckpointStore(store).load()
    if checkpoint is None:
        raise ConfigurationError(f"--directory {directory}: it has no checkpoint yet")
    if SPEC_FILE not in checkpoint.files:
        raise ConfigurationError(f"{checkpoint.path}: no {SPEC_FILE} in it, so the model is not known")
    spec = RunSpec.from_toml(checkpoint.files[SPEC_FILE].decode("utf-8"), str(checkpoint.path / SPEC_FILE))
    files = {name: directory / "files" / name for name in spec.files}
    return _Source(spec, files, checkpoint.snapshot)


def _from_swarm(peer: Peer, replica: Replica) -> StateSnapshot:
    loop = peer.on_loop(asyncio.get_running_loop)
    return asyncio.run_coroutine_threadsafe(newest_state(peer.session, replica.check), loop).result()


async def newest_state(session: Session, check: Callable[[Manifest], None]) -> StateSnapshot:
    """The newest state that the peers serve, downloaded without taking part in the run.

    Whom it is fetched from may take a step or leave meanwhile, so it is tried `ATTEMPTS` times. Raises
    `UnreachableError`.
    """

    async def accept(manifest: Manifest) -> None:
        check(manifest)  # nothing trains here

    def donors() -> list[PeerId]:
        progress = {item.owner: item.payload.step for item in session.board.items(Progress)}
        able = [peer for peer, info, _ in session.board.items(AddressInfo) if peer in progress]
        return sorted(able, key=lambda peer: (-progress[peer], peer))

    for attempt in range(1, ATTEMPTS + 1):
        try:
            async with asyncio.timeout(DONORS_TIMEOUT_S):
                while not donors():
                    await session.board.changed(session.board.generation)
        except TimeoutError as error:
            raise UnreachableError("no peer of the run has a state to give; is anybody training?") from error
        try:
            state = await download(session.node, donors(), accept=accept, cache=session.settings.cache)
        except UnreachableError:
            if attempt == ATTEMPTS:
                raise
            await asyncio.sleep(RETRY_S)
        else:
            break
    return state.snapshot
