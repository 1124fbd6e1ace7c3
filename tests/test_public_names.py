"""What `import minga` offers, pinned: names come and go on purpose only."""

from __future__ import annotations

import inspect

import minga
import minga.recipes
import minga.simulation

NAMES = [
    "ClosedError",
    "ConfigurationError",
    "Credentials",
    "Event",
    "IdentityError",
    "Link",
    "LinkError",
    "LocalError",
    "MingaError",
    "MinorityError",
    "NoStateError",
    "NonFiniteError",
    "Optimizer",
    "Peer",
    "PeerOptions",
    "ProtocolError",
    "RejectedError",
    "RemoteError",
    "RunFinishedError",
    "RunSpec",
    "SilentError",
    "StateMismatchError",
    "StorageError",
    "UnfitError",
    "UnreachableError",
    "host",
    "join",
]


SIMULATION_NAMES = [
    "BEHAVIOURS",
    "AtEvent",
    "AtTime",
    "Attack",
    "DeadlockError",
    "Fault",
    "FaultDriver",
    "FaultRecord",
    "Lie",
    "Outcome",
    "Scenario",
    "Seeds",
    "Simulation",
    "TrainingBackend",
    "VirtualFaults",
    "VirtualTimeLimitError",
    "VirtualTimeLoop",
    "parse_faults",
    "read_scenario",
    "run_virtual",
]


def test_public_names_of_the_simulator() -> None:
    assert list(minga.simulation.__all__) == SIMULATION_NAMES
    for name in SIMULATION_NAMES:
        assert inspect.getdoc(getattr(minga.simulation, name)), name


def test_public_names() -> None:
    assert sorted(minga.__all__) == NAMES
    assert list(minga.__all__) == sorted(minga.__all__)
    assert set(dir(minga)) >= set(NAMES)


def test_every_public_name_is_documented_and_says_where_it_is_from() -> None:
    for name in NAMES:
        thing = getattr(minga, name)
        assert inspect.getdoc(thing), name
        assert thing.__module__ == "minga", name


def test_no_constructor_takes_a_timeout() -> None:
    for name in NAMES:
        thing = getattr(minga, name)
        if not (inspect.isclass(thing) and issubclass(thing, Exception | tuple | minga.RunSpec)):
            assert not any("timeout" in parameter for parameter in inspect.signature(thing).parameters), name


RECIPE_NAMES = [
    "RECIPES",
    "Batch",
    "Beside",
    "DemoGoal",
    "Exhibit",
    "Exported",
    "Files",
    "Loss",
    "Metric",
    "Provenance",
    "PublicBatch",
    "Recipe",
    "RecipeContext",
    "RecipeFacts",
    "Sample",
    "SampleOptions",
    "Score",
    "Settings",
    "Showing",
    "Shown",
    "StreamPosition",
    "TaskOptions",
    "TaskReport",
    "choice",
    "described",
    "endless",
    "epoch_seed",
    "evaluating",
    "held_out",
    "load_recipe",
    "new_model",
    "open_hub",
    "published",
    "real",
    "rows_of",
    "shuffled",
    "whole",
]


def test_public_names_of_recipes() -> None:
    assert list(minga.recipes.__all__) == RECIPE_NAMES
    for name in RECIPE_NAMES:
        assert getattr(minga.recipes, name) is not None
