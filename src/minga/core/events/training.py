"""Events of steps, state, checkpoints and access."""

from __future__ import annotations

from minga.core.events.bus import EventData

# ---- steps


class StepApplied(EventData, kind="step.applied"):
    """This peer applied a step in which `members` took part. `samples` are this peer's, `batch` is the target. Since
    the last one the thread that trains stood for `held_s` seconds: it waited, or read or changed the model for others.
    """

    step: int
    samples: int
    members: int
    batch: int
    held_s: float = 0.0


class MicroBatchDropped(EventData, kind="micro_batch.dropped"):
    """A micro-batch was not finite, or ended when its step was already closed."""

    step: int
    samples: int


class ParametersDrift(EventData, kind="parameters.drift"):
    """Devices of the run round differently, so the parameters are averaged every so many steps from now on.

    `every` follows the drift that was measured; 0 is never.
    """

    step: int
    every: int


class ParametersNotAveraged(EventData, kind="parameters.not_averaged"):
    """The parameters were due to be averaged, and were not. They are averaged the next time."""

    step: int
    why: str


class TrainingTooSlow(EventData, kind="training.too_slow"):
    """The others fill a whole step during one micro-batch of this peer, so it computes nothing for now."""

    step: int
    why: str


class TrainingNotNeeded(EventData, kind="training.not_needed"):
    """The micro-batches of the others fill the target batch, so that hardly any sample of this peer counts."""

    step: int
    why: str


class TrainingTwin(EventData, kind="training.twin"):
    """Another peer computes the same samples as this one, as with equal seeds."""

    step: int
    why: str


class MemberStatus(EventData, kind="member.status"):
    """What this peer does now: `status` is "training", "syncing", "averaging" or "finished"."""

    status: str
    step: int


class MemberOutOfSync(EventData, kind="member.out_of_sync"):
    """The others completed a step without this peer. It fetches the state."""

    step: int
    why: str


class MemberCutOff(EventData, kind="member.cut_off"):
    """This peer and most others cannot reach each other. It takes part again once they can."""

    step: int


class MemberDiverged(EventData, kind="member.diverged"):
    """The state of this peer differs from that of most peers. It fetches what differs."""

    step: int


class MemberFailed(EventData, kind="member.failed"):
    """This peer takes part in no more steps."""

    why: str


class MemberUnfit(EventData, kind="member.unfit"):
    """Another peer takes part in no step: its program trains something else than the run. `why` are its own words."""

    peer: str
    why: str


class RunFinished(EventData, kind="run.finished"):
    """The last step of the run is applied."""

    step: int


class RunNobodyAnswers(EventData, kind="run.nobody_answers"):
    """No entry address of the link answers; this peer goes on alone."""

    why: str


class RunFileFailed(EventData, kind="run.file_failed"):
    """A file of the run could not be fetched from one peer."""

    peer: str
    file: str
    reason: str


# ---- state and checkpoints


class StateAwaited(EventData, kind="state.awaited"):
    """This peer has no state of the run, or an old one, and waits for a peer that gives it one; `why` says for what."""

    why: str


class StateFounded(EventData, kind="state.founded"):
    """The run begins with this peer's state, whose digest the organiser has signed."""

    digest: str


class SyncAdvanced(EventData, kind="sync.progress"):
    """A part of a state has arrived."""

    step: int
    done_bytes: int
    total_bytes: int


class SyncFinished(EventData, kind="sync.finished"):
    """This peer has fetched the state of the swarm, in `seconds`."""

    step: int
    seconds: float


class SyncOvertaken(EventData, kind="sync.overtaken"):
    """The swarm took a step before the state had arrived. This peer fetches it again."""

    step: int
    why: str


class SyncFailed(EventData, kind="sync.failed"):
    """The state could not be fetched. This peer tries again."""

    step: int
    why: str


class StatePublished(EventData, kind="state.published"):
    """This peer serves a state to others."""

    step: int
    digest: str


class StateDownloaded(EventData, kind="state.downloaded"):
    """A state was downloaded and verified: `received_bytes` of it came from `donors`, the rest was already here."""

    step: int
    digest: str
    received_bytes: int
    total_bytes: int
    donors: list[str]


class StateDonorDropped(EventData, kind="state.donor_dropped"):
    """This peer stops using a state source; `lied` says that the source served bytes that do not match their hash."""

    peer: str
    reason: str
    lied: bool


class StateCacheFailed(EventData, kind="state.cache_failed"):
    """This peer cannot keep the downloaded part of a state on the disk."""

    reason: str


class CheckpointSaved(EventData, kind="checkpoint.saved"):
    """A checkpoint was written into the folder `path`."""

    step: int
    path: str


class CheckpointFailed(EventData, kind="checkpoint.failed"):
    """A checkpoint could not be written. Training goes on."""

    step: int
    why: str


class CheckpointArchived(EventData, kind="checkpoint.archived"):
    """A checkpoint is kept for good in the folder `path`, with a signed record."""

    step: int
    path: str


class CheckpointUploaded(EventData, kind="checkpoint.uploaded"):
    """An archived checkpoint was copied to `checkpoints.upload_to`."""

    step: int
    seconds: float


class CheckpointNotUploaded(EventData, kind="checkpoint.not_uploaded"):
    """An archived checkpoint could not be copied. The copy is tried again, at the latest after the next start."""

    step: int
    why: str


# ---- access to runs for members


class AccessOrders(EventData, kind="access.orders"):
    """New orders of the organisers arrived: `barred` keys are revoked, `term` is the present organiser's."""

    barred: int
    term: int


class RunAmended(EventData, kind="run.amended"):
    """In the round of `step` the organisers' `changes` are in force, as far as they differ from the run spec, and this
    peer did not go by them before: it may have come later than they began.
    """

    step: int
    changes: str


class StrategyChanged(EventData, kind="strategy.changed"):
    """From `step` on the run uses `strategy`, which begins with the shared parameters. This peer dropped
    `dropped_samples` samples of the strategy before, and the residuals of `dropped_residuals` vectors.
    """

    step: int
    strategy: str
    dropped_samples: int
    dropped_residuals: int


class RunRegrouped(EventData, kind="run.regrouped"):
    """By the organisers' order the run goes on with `members` peers from `step`; `present`: this peer is one of them,
    and has that state.
    """

    step: int
    members: int
    present: bool


class RunPaused(EventData, kind="run.paused"):
    """The organisers paused the run, or (`paused` false) let it go on: this peer is at `step`."""

    step: int
    paused: bool


class AccessInvalidOrder(EventData, kind="access.invalid_order"):
    """A peer sent `count` invalid orders; `why` is about the first."""

    peer: str
    why: str
    count: int


class AccessEnded(EventData, kind="access.ended"):
    """The access of another peer ended, and its connections are closed."""

    peer: str
    why: str


class AccessLost(EventData, kind="access.lost"):
    """The access of this peer ended."""

    why: str


class AccessOverused(EventData, kind="access.overused"):
    """More peers joined by one invitation than its `uses`: `used` so far, `peer` being the last."""

    invitation: str
    peer: str
    uses: int
    used: int


class AccessRenewed(EventData, kind="access.renewed"):
    """The authority gave the next access token, which is good until `expires`; null: for as long as the run lasts."""

    expires: int | None


class AccessNotRenewed(EventData, kind="access.not_renewed"):
    """The authority gave no token. It is asked again until the present one has ended, at `expires`."""

    why: str
    expires: int
