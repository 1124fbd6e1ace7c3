"""The output, interruption and parent watch of a command, created before any heavy import."""

from __future__ import annotations

import gc
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from minga.cli.terminal.interrupt import Interruption, ParentWatch
from minga.cli.terminal.output import Output
from minga.core.events.bus import Event
from minga.core.events.training import RunAmended

if TYPE_CHECKING:
    from minga.core.spec.run_spec import RunSpec
    from minga.training.peer import Peer


@dataclass(frozen=True)
class Context:
    """The context of every command. `parent_watch` is None unless a parent process passed `--leash`."""

    output: Output
    interruption: Interruption
    parent_watch: ParentWatch | None = None

    def wire(self, peer: Peer) -> None:
        """Close the peer on Ctrl-C whatever the main thread does, tell which amendments come into force at it, and pass
        its events on as JSON.
        """
        self.interruption.on_interrupt(peer.close)
        peer.subscribe(self._tell_amendments)
        if self.output.json_output:
            peer.subscribe(lambda event: self.output.event(event.kind, **event.fields))

    def let_go(self) -> None:
        """Free what belongs to a peer that was closed and wired before, though the command goes on."""
        self.interruption.forget()
        gc.unfreeze()  # `collect_again` passed over its cycles
        gc.collect()

    def is_over(self, step: int) -> bool:
        """Whether the parent process wants this one to finish after global step `step`."""
        return self.parent_watch is not None and self.parent_watch.is_over(step)

    @property
    def is_told_to_end(self) -> bool:
        """Whether the parent process has said after which step."""
        return self.parent_watch is not None and self.parent_watch.end_step < math.inf

    def _tell_amendments(self, event: Event) -> None:
        if isinstance(event.data, RunAmended):
            at = f"in force here at step {event.data.step}"
            self.output.say(f"Amendments of the organiser, {at}: {event.data.changes}.")


def make_context(*, json_output: bool, parent_watch: bool = False, slow_imports: bool = False) -> Context:
    """The context of this process; with `slow_imports` garbage waits for `collect_again`.

    The garbage collector costs a fifth of the time of importing what training needs.
    """
    interruption, output = Interruption(json_output=json_output), Output(json_output=json_output)
    if slow_imports:
        gc.disable()
        if output.interactive:
            output.say("Loading PyTorch …")
    return Context(output, interruption, ParentWatch(interruption.trigger) if parent_watch else None)


def collect_again() -> None:
    """Collect garbage from now on; what is there already, mostly modules, is never looked at again."""
    gc.freeze()
    gc.enable()


def apply_threads(threads: int | None) -> None:
    """Let torch use at most `threads` cores."""
    if threads is not None:
        import torch

        torch.set_num_threads(threads)


def tell_cautions(spec: RunSpec, output: Output) -> None:
    """Print the warnings and the lost guarantees of this run; `docs/combinations.md` lists them all.

    Raises `ConfigurationError` for what is not installed here.
    """
    from minga.combinations import cautions

    for each in cautions(spec):
        output.say(f"! {each.reason}.")
        output.event("run.caution", code=each.code, why=each.reason)
