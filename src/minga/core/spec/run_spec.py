"""The run spec: everything that all peers of a run must agree on, in one file.

An organiser writes it as TOML. Its canonical form is JSON with sorted keys, no blanks, every setting that is not at its
default, and every float in Python's shortest exact spelling. So equal specs have equal bytes on every machine. A change
of a default is therefore a new `SPEC_VERSION`. The run id is the BLAKE3 digest of those bytes in key derivation mode.

No two runs share an id, though their settings may be equal. The peer that begins a run writes its key and a number of
128 bits that it draws into the spec (`begun`), so both are under the digest. The link names run id and organiser. A
peer that joins accepts a spec only if its digest is that run id, the organiser signed it, and `begun` names the
organiser (`SignedRunSpec.verify`). So two runs of one id would need a collision of BLAKE3, or one key that draws the
same number twice; and no other key can claim the id of a run.

The settings of the recipe, `[recipe.NAME]`, are hashed as they stand and understood by the recipe alone
(`minga.recipes`), and those of the strategy, `[strategy.NAME]`, by the strategy.
"""

from __future__ import annotations

import json
import math
import re
import secrets
import tomllib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, TypeGuard

from blake3 import blake3
from pydantic import Field, ValidationError, field_validator, model_validator

from minga.core.errors import ConfigurationError, reason_of
from minga.core.files import NOT_TEXT, decode_text
from minga.core.printable import is_printable
from minga.core.spec.fields import MAX_STEPS, Printable, Section, described, without_private
from minga.core.spec.plugins import MAX_PLUGINS, Origin
from minga.core.spec.problems import explain, probably_meant
from minga.core.spec.sections import (
    MAX_BATCH,
    AveragingSection,
    CheckpointsSection,
    FileEntry,
    ModelSection,
    NetworkSection,
    OptimizerSection,
    SecuritySection,
    SplitSection,
    StateSection,
    TrainingSection,
    check_file_names,
)
from minga.core.spec.toml import render, table_name
from minga.core.wheel import WHEEL_PATTERN

# ---- The settings of recipes and strategies as the run spec keeps them: bounded tables, which only they understand.


MAX_DEPTH: Final = 6
MAX_TABLE_BYTES: Final = 64 << 10
_KEY: Final = re.compile(r"[a-z][a-z0-9_]{0,63}", re.ASCII)
_MAX_WHOLE: Final = 2**63 - 1


def read_recipe_tables(tables: Mapping[str, Any], recipe: str) -> dict[str, dict[str, Any]]:
    """The tables with each value in its one spelling; raises `ValueError` unless `recipe` has the only one, if any."""
    for name in tables:
        if name != recipe:
            shown = str(name)[:60]
            raise ValueError(
                f'there are settings of {shown!r}, but model.recipe = "{recipe}"; to train {shown!r}, write '
                f'recipe = "{shown}" under [model]'
            )
    return {name: _read_table(table, f"recipe.{name}") for name, table in tables.items()}


def read_strategy_tables(tables: Mapping[str, Any], strategies: Collection[str]) -> dict[str, dict[str, Any]]:
    """The tables with each value in its one spelling; raises `ValueError` for one of another than these strategies."""
    for name in tables:
        if name not in strategies:
            used = " and ".join(f'"{each}"' for each in strategies)
            raise ValueError(
                f"there are settings of {str(name)[:60]!r}, but the run's strategy is {used}"
                f"{probably_meant(name, strategies)}"
            )
    return {name: _read_table(table, f"strategy.{name}") for name, table in tables.items()}


WARM_START, WARM_BATCH = "synchronous_for", "synchronous_batch"
"""Settings that each strategy takes beside its own, in its table: samples of a run's first phase, which is synchronous,
and of each of its steps.
"""


def write_out_warm_start(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """The values of a run spec, in which a warm start of its strategy is a planned change from synchronous steps to it.

    What counts rounds of the strategy has as many samples as without a warm start: the schedule of the learning rate
    then counts steps of the first phase, and the run stops after the steps of both phases together. Raises `ValueError`
    where the samples of a step are not fixed, changes are planned besides, or there are too many steps.
    """
    training, tables = values.get("training", {}), values.get("strategy", {})
    training = training.model_dump(mode="json") if isinstance(training, TrainingSection) else training
    name = training.get("strategy") if isinstance(training, Mapping) else None
    table = tables.get(name) if isinstance(tables, Mapping) and isinstance(name, str) else None
    if not isinstance(table, Mapping) or not {WARM_START, WARM_BATCH} & table.keys():
        return values
    where = f"strategy.{name}.{WARM_START}"
    batch = training.get("target_batch_size", TrainingSection.model_fields["target_batch_size"].default)
    samples, step = table.get(WARM_START), table.get(WARM_BATCH, batch)
    if name == "synchronous":
        raise ValueError(f"{where}: synchronous steps need no warm start")
    if training.get("strategy_changes"):
        raise ValueError(f"{where}: leave it out, and name its phase in training.strategy_changes with the others")
    if not _is_whole(batch, MAX_BATCH):
        raise ValueError(f"{where} needs a number from 1 to {MAX_BATCH:,} as training.target_batch_size")
    if not _is_whole(step, MAX_BATCH) or not _is_whole(samples, MAX_STEPS * step):
        raise ValueError(
            f"{where} and {WARM_BATCH} must be whole numbers from 1 on, and {WARM_START} has to be there; the first "
            f"phase has at most {MAX_STEPS:,} steps of at most {MAX_BATCH:,} samples"
        )
    warm_steps = -(-samples // step)
    change = {"from_step": warm_steps, "strategy": name, "target_batch_size": batch}
    warm = {"strategy": "synchronous", "target_batch_size": step, "strategy_changes": [change]}
    rest = {key: value for key, value in table.items() if key not in (WARM_START, WARM_BATCH)}
    others = {key: value for key, value in tables.items() if key != name}
    fragments = table.get("fragments", 1)
    parts = fragments if _is_whole(fragments, MAX_STEPS) else 1
    if _is_whole(rounds := training.get("stop_after_steps"), MAX_STEPS):
        warm["stop_after_steps"] = stop = _last_step(rounds, max(1, batch // parts), warm_steps, step)
        if stop > MAX_STEPS:
            raise ValueError(
                f"{where}: training.stop_after_steps = {rounds} rounds are as many samples as {stop} steps of both "
                f"phases, and the limit is {MAX_STEPS}; lower stop_after_steps or raise {WARM_BATCH}"
            )
    found = {**values, "training": {**training, **warm}, "strategy": {**others, **({name: rest} if rest else {})}}
    try:
        optimizer = OptimizerSection.model_validate(values.get("optimizer", {}))
    except ValidationError:
        return found  # it is refused when the section is read, by the numbers that the user wrote
    unit = step * parts
    warmup, total = (n and max(1, round(n * batch / unit)) for n in (optimizer.warmup_steps, optimizer.total_steps))
    if total > MAX_STEPS:
        raise ValueError(
            f"{where}: optimizer.total_steps = {optimizer.total_steps} rounds are as many samples as {total} steps of "
            f"the first phase, and the limit is {MAX_STEPS}; lower total_steps or raise {WARM_BATCH}"
        )
    return {**found, "optimizer": optimizer.model_copy(update={"warmup_steps": warmup, "total_steps": total})}


def _last_step(rounds: int, of_round: int, warm_steps: int, of_step: int) -> int:
    """After which step a run has the samples of so many `rounds`, with that many samples each, if it begins with
    `warm_steps` of another number of samples.
    """
    left = rounds * of_round - warm_steps * of_step
    return warm_steps + (-(-left // of_round) if left > 0 else -(-left // of_step))


def _is_whole(value: Any, most: int) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= most


def _read_table(table: Any, where: str) -> dict[str, Any]:
    """Values are printable texts, finite numbers, whole numbers of 64 bits, true or false, lists and tables with keys
    of a-z, 0-9 and _, of bounded depth and size.
    """
    if not isinstance(table, Mapping):
        raise ValueError(f"{where} must be a table of settings")
    found: dict[str, Any] = _read(table, where, MAX_DEPTH)
    size = len(json.dumps(found, allow_nan=False))
    if size > MAX_TABLE_BYTES:
        raise ValueError(f"{where} takes {size} bytes; the limit is {MAX_TABLE_BYTES}")
    return found


def _read(value: Any, where: str, depth: int) -> Any:
    if isinstance(value, Mapping | list | tuple):
        if depth == 0:
            raise ValueError(f"{where[:100]} is nested more than {MAX_DEPTH} deep")
        if not isinstance(value, Mapping):
            return [_read(each, where, depth - 1) for each in value]
        for key in value:
            if not (isinstance(key, str) and _KEY.fullmatch(key)):
                raise ValueError(f"{where[:100]}: {str(key)[:60]!r} is no key (a-z, 0-9, _, at most 64 of them)")
        return {key: _read(each, f"{where}.{key}", depth - 1) for key, each in value.items()}
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{where} is no finite number")
        return value + 0.0  # -0.0 equals 0.0 but prints differently, and the printed form is hashed
    if isinstance(value, int) and not isinstance(value, bool):
        if abs(value) > _MAX_WHOLE:
            raise ValueError(f"{where} is not within 64 bits")
    elif isinstance(value, str):
        if not is_printable(value.replace("\n", "").replace("\t", "")):
            raise ValueError(f"{where} is not printable")
    elif not isinstance(value, bool):
        raise ValueError(f"{where} is neither text, number, true or false, list nor table")
    return value


# ---- The spec: its settings, its canonical form and its id.


SPEC_VERSION = 1
MAX_SPEC_BYTES = 256 << 10
MAX_FILES = 64
MAX_FILES_BYTES = 32 << 30
"""Of all files of a run together."""
_RUN_ID_CONTEXT = "minga v1 run id"
_BEGUN = r"^[0-9a-f]{64}:[0-9a-f]{32}$"
_PLUGIN = r"^[a-z]{1,32}:[a-z][a-z0-9_.-]{0,63}$"


class RunSpec(Section):
    """A run: read with `from_toml` or `from_file`, passed on as `canonical_bytes`, named by `run_id`."""

    spec_version: int = described(
        SPEC_VERSION, "format of this file", f"{SPEC_VERSION}", ge=SPEC_VERSION, le=SPEC_VERSION
    )
    name: Annotated[Printable, Field(min_length=1, max_length=64)] = described(
        ...,
        "name of the run, for people",
        "a text of 1 to 64 printable characters on one line, without blanks at its ends",
    )
    begun: Annotated[str, Field(pattern=_BEGUN)] | None = described(
        None,
        "key of the peer that began the run, and a number; written by that peer",
        "64 hexadecimal digits, a colon and 32 hexadecimal digits",
    )
    wheel: Annotated[str, Field(pattern=WHEEL_PATTERN)] | None = described(
        None,
        "wheel of minga with which the run began, and its hash; written by the peer that begins the run",
        "the name of a wheel of minga, #sha256= and 64 hexadecimal digits",
    )
    model: ModelSection = ModelSection()
    recipe: dict[str, dict[str, Any]] = described(
        {}, "settings of the recipe", "one table [recipe.NAME] of the recipe that model.recipe names"
    )
    optimizer: OptimizerSection = OptimizerSection()
    training: TrainingSection = TrainingSection()
    strategy: dict[str, dict[str, Any]] = described(
        {}, "settings of the strategy", "one table [strategy.NAME] of the strategy that training.strategy names"
    )
    averaging: AveragingSection = AveragingSection()
    state: StateSection = StateSection()
    checkpoints: CheckpointsSection = CheckpointsSection()
    network: NetworkSection = NetworkSection()
    security: SecuritySection = SecuritySection()
    split: SplitSection = SplitSection()
    files: dict[str, FileEntry] = described(
        {}, "files that come with the run", f"at most {MAX_FILES} tables [files.NAME]", max_length=MAX_FILES
    )
    plugins: dict[Annotated[str, Field(pattern=_PLUGIN)], Origin] = described(
        {},
        "which packages bring what does not come with minga; written by the peer that starts the run",
        f'at most {MAX_PLUGINS} tables [plugins."codec:NAME"] or the like',
        max_length=MAX_PLUGINS,
    )

    def __init__(self, **values: Any) -> None:
        """A spec from sections or mappings, by name. Raises `ConfigurationError`, which lists all problems."""
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise ConfigurationError(explain(error, type(self), "run spec")) from error

    @field_validator("files")
    @classmethod
    def _check_files(cls, files: dict[str, FileEntry]) -> dict[str, FileEntry]:
        check_file_names(list(files))
        if (total := sum(entry.size_bytes for entry in files.values())) > MAX_FILES_BYTES:
            raise ValueError(f"the files take {total} bytes in all; the limit is {MAX_FILES_BYTES}")
        return files

    @model_validator(mode="before")
    @classmethod
    def _write_out_warm_start(cls, values: Any) -> Any:
        return write_out_warm_start(values) if isinstance(values, Mapping) else values

    @model_validator(mode="after")
    def _check_recipe(self) -> RunSpec:
        found = read_recipe_tables(self.recipe, self.model.recipe)
        self.recipe.clear()
        self.recipe.update(found)
        return self

    @model_validator(mode="after")
    def _check_strategy(self) -> RunSpec:
        found = read_strategy_tables(self.strategy, self.training.strategies)
        self.strategy.clear()
        self.strategy.update(found)
        return self

    @model_validator(mode="after")
    def _check_split(self) -> RunSpec:
        if self.split.is_on and self.security.verification == "byzantine":
            raise ValueError(
                f'split.variant = "{self.split.variant}" needs security.verification = "none": nobody else has the '
                "data and could compute the same again"
            )
        return self

    @property
    def recipe_settings(self) -> dict[str, Any]:
        """The spec's settings for its recipe, as `[recipe.NAME]`; the recipe has defaults for the others."""
        return self.recipe.get(self.model.recipe, {})

    @property
    def micro_batches_per_member(self) -> int:
        """(byzantine) Micro-batches that each member computes in a step: with as many members as began the run they
        come to at least the target batch size.
        """
        target, _ = self.training.batch_range
        return -(-target // (self.security.founders * self.security.micro_batch_size))

    @property
    def founder(self) -> str:
        """Whose state is the first one, "organiser" or "first"; of clients whose parts are averaged, the first one's,
        since the host has the server's part.
        """
        return "first" if self.split.averages_clients else self.state.founder

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any], source: str = "run spec") -> RunSpec:
        """A spec from nested mappings; `source` names them in the `ConfigurationError` that lists all problems."""
        _check_version(values, source)
        try:
            return cls.model_validate(dict(values))
        except ConfigurationError as error:  # of `__init__`, which does not know the source
            if not isinstance(error.__cause__, ValidationError):
                raise
            raise ConfigurationError(explain(error.__cause__, cls, source)) from error
        except ValidationError as error:
            raise ConfigurationError(explain(error, cls, source)) from error

    @classmethod
    def from_toml(cls, text: str, source: str = "run spec") -> RunSpec:
        """A spec from TOML; `source` names the text in the `ConfigurationError` that lists all problems."""
        if len(text) > MAX_SPEC_BYTES:
            raise ConfigurationError(f"{source}: {len(text)} characters; a run spec has at most {MAX_SPEC_BYTES}")
        try:
            values = tomllib.loads(text)
        except (ValueError, RecursionError) as error:
            hint = "; words need quotes" if "Invalid value" in str(error) else ""
            raise ConfigurationError(f"{source}: not valid TOML: {str(error)[:200]}{hint}") from error
        return cls.from_mapping(values, source)

    @classmethod
    def from_file(cls, path: Path | str) -> RunSpec:
        """A spec from a TOML file. Raises `ConfigurationError`, which names the file."""
        try:
            with open(path, "rb") as file:
                text = decode_text(file.read(2 * MAX_SPEC_BYTES + 2))
        except OSError as error:
            raise ConfigurationError(f"{path}: cannot be read: {reason_of(error)}") from error
        except UnicodeDecodeError as error:
            raise ConfigurationError(f"{path}: byte {error.start}: {NOT_TEXT}") from error
        return cls.from_toml(text, str(path))

    @classmethod
    def from_canonical(cls, data: bytes, source: str = "run spec") -> RunSpec:
        """The spec whose `canonical_bytes` are `data`; any other bytes are a `ConfigurationError`."""
        if len(data) > MAX_SPEC_BYTES:
            raise ConfigurationError(f"{source}: {len(data)} bytes; a run spec has at most {MAX_SPEC_BYTES}")
        try:
            values = json.loads(data.decode("utf-8"))
        except (ValueError, RecursionError) as error:
            raise ConfigurationError(f"{source}: not in canonical form: {str(error)[:200]}") from error
        if not isinstance(values, dict):
            raise ConfigurationError(f"{source}: not in canonical form: no object")
        spec = cls.from_mapping(values, source)
        if spec.canonical_bytes() != data:
            raise ConfigurationError(f"{source}: not in canonical form")
        return spec

    def canonical_bytes(self) -> bytes:
        """The one encoding of this spec. Raises `ConfigurationError` if it exceeds 256 KiB."""
        values = {"spec_version": SPEC_VERSION, **self.model_dump(mode="json", exclude_defaults=True)}
        text = json.dumps(values, sort_keys=True, separators=(",", ":"), allow_nan=False)
        data = text.encode("ascii")
        if len(data) > MAX_SPEC_BYTES:
            raise ConfigurationError(f"the run spec takes {len(data)} bytes; the limit is {MAX_SPEC_BYTES}")
        return data

    @property
    def run_id(self) -> str:
        """64 hexadecimal digits: BLAKE3 of the canonical bytes, in key derivation mode."""
        return run_id_of(self.canonical_bytes())

    def published(self, files: Mapping[str, FileEntry] | None = None) -> RunSpec:
        """The spec as others get it: with the run's `files`, without what concerns this machine alone.

        This, not the spec on the organiser's disk, is what peers agree on and what the run id is taken from. Recipes
        blank paths in their settings themselves: `minga.recipes.published`. Raises `ConfigurationError` for unsafe
        file names.
        """
        values = without_private(self).model_dump(mode="json")
        if files is not None:
            values["files"] = {name: entry.model_dump(mode="json") for name, entry in files.items()}
        return type(self).from_mapping(values, "published run spec")

    @property
    def begun_by(self) -> str | None:
        """The key of the peer that began the run, as 64 hexadecimal digits; None in a run of an earlier version."""
        return None if self.begun is None else self.begun.partition(":")[0]

    def begin(self, organiser: str, wheel: str | None = None) -> RunSpec:
        """The spec of a new run, begun by the peer with this key, which hands out this `wheel` unless minga is to be
        had elsewhere.
        """
        number, handed_out = secrets.token_hex(16), wheel if self.network.source_url is None else None
        values = {**self.model_dump(mode="json"), "begun": f"{organiser}:{number}", "wheel": handed_out}
        return type(self).from_mapping(values, "run spec")

    def with_plugins(self, origins: Mapping[str, Origin]) -> RunSpec:
        """The spec with these origins of its plug-ins, by "what:name", see `minga.core.spec.plugins.recorded`."""
        values = self.model_dump(mode="json")
        values["plugins"] = {name: origin.model_dump(mode="json") for name, origin in origins.items()}
        return type(self).from_mapping(values, "run spec")

    def amended(self, changes: Mapping[str, Any]) -> RunSpec:
        """The spec with other values of some settings, by keys such as training.seed. Raises `ConfigurationError`."""
        values = self.model_dump(mode="json")
        for key, value in changes.items():
            section, _, name = key.partition(".")
            values[section] = {**values[section], name: value}
        if "training.strategy" in changes:
            values["strategy"] = {name: table for name, table in self.strategy.items() if name in _strategies(values)}
        return type(self).from_mapping(values, "amended run spec")

    def at(self, step: int) -> RunSpec:
        """The spec as it holds in the round of `step`, with one strategy."""
        if not self.training.strategy_changes:
            return self
        return self.model_copy(update={"training": self.training.at(step)})

    @property
    def phases(self) -> list[RunSpec]:
        """The specs that hold one after the other, each with one strategy."""
        return [self.at(step) for step in (0, *(each.from_step for each in self.training.strategy_changes))]

    def with_recipe_settings(self, settings: Mapping[str, Any]) -> RunSpec:
        """The spec with these settings of its recipe in place of those it has."""
        values = {**self.model_dump(mode="json"), "recipe": {self.model.recipe: dict(settings)}}
        return type(self).from_mapping(values, "run spec")

    def with_strategy_settings(self, name: str, settings: Mapping[str, Any]) -> RunSpec:
        """The spec with these settings of the strategy called `name`."""
        values = {**self.model_dump(mode="json"), "strategy": {**self.strategy, name: dict(settings)}}
        return type(self).from_mapping(values, "run spec")

    def to_toml(self) -> str:
        """TOML from which `from_toml` makes an equal spec."""
        tables = {table_name("strategy", name): table for name, table in self.strategy.items()}
        tables |= {table_name("recipe", name): table for name, table in self.recipe.items()}
        return render(self, comments=False, plain=tables)

    @classmethod
    def example_toml(cls, spec: RunSpec | None = None) -> str:
        """`spec` (a new one) as a commented TOML file, but for the settings of the recipe."""
        return render(spec or cls(name="my first run"), comments=True, leave_out=("begun", "wheel"))


def _strategies(values: Mapping[str, Any]) -> set[str]:
    training = values["training"]
    later = [each["strategy"] for each in training["strategy_changes"] if isinstance(each, dict)]
    return {training["strategy"], *later} if isinstance(training["strategy"], str) else set()


def run_id_of(canonical: bytes) -> str:
    """The run id that belongs to canonical bytes, whether this version can read them or not."""
    return blake3(canonical, derive_key_context=_RUN_ID_CONTEXT).hexdigest()


def _check_version(values: Mapping[str, Any], source: str) -> None:
    """Refuse specs of the future in words, before their unknown keys are complained about."""
    version = values.get("spec_version", SPEC_VERSION)
    if isinstance(version, int) and not isinstance(version, bool) and version > SPEC_VERSION:
        shown = version if version < 10**9 else "of the far future"
        raise ConfigurationError(
            f"{source}: spec_version {shown} is newer than what this minga reads ({SPEC_VERSION}); update minga"
        )
