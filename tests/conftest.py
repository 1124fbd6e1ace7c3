from __future__ import annotations

import contextlib
import fcntl
import gc
import logging
import signal
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import pytest
from _pytest.pathlib import import_path
from hypothesis import HealthCheck, Phase, find, settings, strategies

from tests.worlds import forked
from tests.worlds.forked_command import forked_commands

gc.disable()  # until all tests are imported: collections meanwhile would find a million objects and nothing to free
REFUSED = pytest.StashKey[list[str]]()

# An example may have to wait for a core, and what few find is found in many runs. How many draws are slow, or of no
# use, is a matter of chance and says nothing of what is tested.
CHANCE = (HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large)
settings.register_profile("shared machine", deadline=None, max_examples=25, suppress_health_check=CHANCE)
settings.load_profile("shared machine")

FAULT_SEEDS = "0:1"
TESTS = Path(__file__).parent


def pytest_configure(config: pytest.Config) -> None:
    """Import what all tests use, but not where they are only given to workers, which begin after that."""
    if config.getoption("numprocesses", None) and not hasattr(config, "workerinput"):
        return
    import torch

    from minga.testing import guard_threads

    torch.set_num_threads(1)  # small tensors, and several test processes on one machine
    config.stash[REFUSED] = guard_threads()


@pytest.fixture(autouse=True, scope="module")
def _collections_look_at_one_module_only() -> Iterator[None]:
    """Some tests collect, which takes longer by all that the tests before left in caches and libraries."""
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _no_command_watches_this_process_for_signals() -> Iterator[None]:
    """A watchdog that a test left behind would end the process soon after a later test interrupts itself."""
    yield
    assert signal.set_wakeup_fd(-1) == -1


@pytest.fixture(autouse=True)
def _nothing_of_a_loop_is_used_on_another_thread(pytestconfig: pytest.Config) -> Iterator[None]:
    refused = pytestconfig.stash[REFUSED]
    refused.clear()
    yield
    assert refused == []


@pytest.fixture
def loopback_lan(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """One test at a time, of all processes, announces runs on the loopback interface: all hear what one says."""
    with (tmp_path_factory.getbasetemp().parent / "lan.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config, specs: Sequence[Any]) -> None:
    """Fork the workers from one process that has imported the tests, instead of letting each of them do so."""
    import torch

    if sys.platform != "linux" or torch.cuda.device_count():
        return
    stack = contextlib.ExitStack()
    config.add_cleanup(stack.close)
    commands = stack.enter_context(forked_commands(config._tmp_path_factory.getbasetemp()))
    forked.open_server(partial(_prepare_workers, config, commands))
    for spec in specs:
        spec.python = str(commands / Path(sys.executable).name)


def _prepare_workers(config: pytest.Config, commands: Path) -> None:
    """Import all tests as the collection would, which finds them then; of a few each worker imports what it needs."""
    import torch

    torch.set_num_threads(1)  # a process that was forked waits for ever for threads that this one had
    forked.otherwise.append(str(commands / "otherwise"))
    if [Path(each).name for each in config.args] != config.getini("testpaths"):
        return
    for path in sorted(TESTS.rglob("test_*.py")):
        with contextlib.suppress(Exception, pytest.skip.Exception):  # the collection tells of it
            import_path(path, root=config.rootpath, consider_namespace_packages=False)
    # By its draws hypothesis reads all modules for constants, which takes seconds where it has not kept them yet.
    find(strategies.lists(strategies.integers(), min_size=200), bool, settings=settings(phases=[Phase.generate]))


def pytest_collection_finish(session: pytest.Session) -> None:
    if session.items and not session.config.option.collectonly:
        import torch

        gc.freeze()  # libraries and tests stay: no collection looks at their million objects again
        gc.set_threshold(20_000, 20, 50)  # tests are short: most of what one makes is free again when it ends
        gc.enable()
        if not torch.cuda.is_available():  # a process that was forked cannot use CUDA
            forked.open_server()
        for logger in logging.root.manager.loggerDict.values():  # else pytest has one more handler for each of torch's
            if isinstance(logger, logging.Logger):
                logger.propagate = True
        gc.unfreeze = _refuse_to_thaw  # after the server, whose processes may
        frozen = gc.get_freeze_count()
        gc.get_freeze_count = lambda: frozen  # which every peer asks for, and which counts the million one by one


def _refuse_to_thaw() -> NoReturn:
    raise AssertionError("thaw in a process of your own: here each later collection would look at a million objects")


def pytest_unconfigure() -> None:
    forked.close_server()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--fault-seeds", default=FAULT_SEEDS, metavar="FROM:TO", help="seeds of test_seeded_faults, TO not included"
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "fault_seed" in metafunc.fixturenames:
        given = metafunc.config.getoption("--fault-seeds")
        first, colon, end = given.partition(":")
        if not (first.isdecimal() and colon and end.isdecimal() and int(first) < int(end)):
            raise pytest.UsageError(f"--fault-seeds {given}: FROM:TO with two numbers is wanted, such as {FAULT_SEEDS}")
        metafunc.parametrize("fault_seed", range(int(first), int(end)))


@pytest.fixture(autouse=True)
def _no_outside_server_is_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test that would use public relays fails; peers in processes of their own are bound to this machine."""

    def refuse() -> None:
        raise AssertionError("a test must not use relays outside: bind to 127.0.0.1, or set network.relay to none")

    from iroh import iroh_ffi

    monkeypatch.setattr(iroh_ffi, "preset_n0", refuse)
