"""The way of a framework's loop into a run, and what no such loop can do."""

from __future__ import annotations

import logging
from typing import NamedTuple

from minga.core.errors import ConfigurationError, LinkError
from minga.core.spec.run_spec import RunSpec
from minga.identity.links.links import Link
from minga.training.join import PeerOptions, join
from minga.training.peer import Peer
from minga.training.ranks.process_group import ProcessGroup

logger = logging.getLogger("minga.integrations")


class RunPlace(NamedTuple):
    """A place in a run. `peer` is None in processes other than the first of a `torch.distributed` group; `owned`: it
    was joined here, so that it is closed here, too.
    """

    peer: Peer | None
    spec: RunSpec
    owned: bool

    @property
    def schedule_steps(self) -> int:
        """Global steps over which a learning-rate schedule goes: to the run's last one, if it has one."""
        if (last := self.spec.training.stop_after_steps) is not None:
            return last
        steps = self.spec.optimizer.total_steps
        logger.warning(
            "this run has no last step (training.stop_after_steps), so the script's learning-rate schedule goes over "
            "optimizer.total_steps = %d steps, and not over those that the script names",
            steps,
        )
        return steps

    @property
    def last_step(self) -> int | None:
        """The step after which the run ends, as amended so far; None without an end, or without a peer."""
        return None if self.peer is None else self.peer.checkpointer.last_step

    def tell_of_clipping(self, own: float | None, *, by_value: bool = False) -> None:
        """Warn if the run clips gradients otherwise than the script, which does it to the norm `own`, or each value to
        that; None or 0 is not to clip.
        """
        norm = self.spec.optimizer.max_grad_norm
        if not own:
            differs, script = norm is not None, "gives its framework no norm"
        elif by_value:
            differs, script = True, f"clips each value to {own}, which is left out"
        else:
            differs, script = own != norm, f"clips to {own}, which is left out"
        if differs:
            logger.warning(
                "the run clips gradients to %s, as its spec says (optimizer.max_grad_norm); this script %s",
                norm or "no norm",
                script,
            )

    def leave(self) -> None:
        """Leave the run, unless the program holds the peer itself."""
        if self.owned and self.peer is not None:
            self.peer.close()


def enter(link: Link | str | Peer | None, options: PeerOptions | None = None, *, is_first: bool = True) -> RunPlace:
    """Join the run of `link`, or take the peer that the program has; in the first process of a group only.

    Of the others `link` may be None.

    Raises what `minga.join` raises, and `ConfigurationError` for a run in which a framework's loop cannot take part.
    """
    owned = not isinstance(link, Peer)
    if not is_first:
        peer = None
    elif link is None:
        raise LinkError("the first process needs a link, or a peer; only the others of its group can do without")
    else:
        peer = link if isinstance(link, Peer) else join(link, options)
    try:
        ranks = ProcessGroup.of_this_process(has_peer=peer is not None)
        if ranks is not None:
            spec = ranks.share_spec(None if peer is None else peer.spec)
        elif peer is None:
            raise ConfigurationError("the processes of this peer need torch.distributed, initialised before they join")
        else:
            spec = peer.spec
        place = RunPlace(peer, spec, owned)
        _check(place)
    except BaseException:
        if owned and peer is not None:
            peer.close()
        raise
    return place


def _check(place: RunPlace) -> None:
    if place.spec.security.verification == "byzantine":
        raise ConfigurationError(
            'in a run with security.verification = "byzantine" the run chooses the data of each peer; no framework '
            "lets it. Use minga.Optimizer.batches() in a loop of your own"
        )
    if place.peer is not None and place.peer.role not in ("trainer", "client"):
        raise ConfigurationError(
            f"the role {place.peer.role!r} computes no gradients; a framework's loop is for trainers and clients"
        )
