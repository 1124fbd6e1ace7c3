from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import threading
import types
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import iroh
import pytest
from iroh import iroh_ffi

from minga.network.iroh import ffi_bytes
from minga.network.iroh.ffi_bytes import PIECE_BYTES, Interrupt, read_into, unsupported_reason, write, write_all


@contextlib.asynccontextmanager
async def one_way_stream() -> AsyncIterator[tuple[Any, Any]]:
    """The two ends of a QUIC stream between two endpoints in this process; one byte has crossed it."""
    options = {"preset": iroh.preset_minimal(), "relay_mode": iroh.RelayMode.disabled(), "bind_addr": "127.0.0.1:0"}
    server = await iroh.Endpoint.bind(iroh.EndpointOptions(alpns=[b"test"], **options))
    client = await iroh.Endpoint.bind(iroh.EndpointOptions(**options))

    async def accept() -> Any:
        return await (await (await server.accept_next()).accept()).connect()

    try:
        here, there = await asyncio.gather(client.connect(server.addr(), b"test"), accept())
        sender = await here.open_uni()
        await sender.write_all(b"!")
        receiver = await there.accept_uni()
        assert await receiver.read_exact(1) == b"!"
        yield sender, receiver
    finally:
        await client.close()
        await server.close()


async def read_all(receiver: Any, size: int) -> bytes:
    target = bytearray(size)
    view = memoryview(target)
    while view.nbytes:
        got = await read_into(receiver, view, Interrupt())
        assert got
        view = view[got:]
    return bytes(target)


def run(test: Callable[[Any, Any], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        async with one_way_stream() as (sender, receiver), asyncio.timeout(50):
            await test(sender, receiver)

    asyncio.run(main())


@pytest.fixture(params=["fast", "slow"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "slow":
        monkeypatch.setattr(ffi_bytes, "_slow_reason", "a test")
    return str(request.param)


def test_installed_bindings_are_supported() -> None:
    assert unsupported_reason() is None
    assert ffi_bytes._slow_reason is None


def fake_bindings(**changes: object) -> Any:
    return types.SimpleNamespace(**{**vars(iroh_ffi), **changes})


class OtherBuffer(ctypes.Structure):
    _fields_ = (("len", ctypes.c_uint64), ("data", ctypes.POINTER(ctypes.c_char)))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"_UniffiLib": types.SimpleNamespace()}, "no foreign function"),
        ({"_UniffiLib": None}, "no foreign function"),
        ({"_uniffi_rust_call_with_error": None}, "no _uniffi_rust_call_with_error"),
        ({"_UNIFFI_RUST_FUTURE_CONTINUATION_CALLBACK": None}, "no _UNIFFI"),
        ({"_UniffiRustBuffer": OtherBuffer}, "other fields"),
        ({"_UniffiRustBuffer": None}, "other fields"),
        ({"_UniffiFfiConverterTypeIrohError__as_error": None}, "no error converter"),
        ({"_UNIFFI_RUST_FUTURE_POLL_READY": 1}, "other poll codes"),
    ],
)
def test_changed_bindings_are_noticed(changes: dict[str, object], reason: str) -> None:
    found = unsupported_reason(fake_bindings(**changes))
    assert found is not None
    assert reason in found


@pytest.mark.parametrize(
    ("name", "argtypes", "reason"),
    [
        ("uniffi_iroh_ffi_fn_method_sendstream_write", (ctypes.c_uint64,), "writing takes"),
        ("uniffi_iroh_ffi_fn_method_recvstream_read", (ctypes.c_uint64, ctypes.c_uint64), "reading takes"),
        ("ffi_iroh_ffi_rust_future_poll_u64", (ctypes.c_uint64, ctypes.c_void_p), "polling takes"),
    ],
)
def test_changed_signatures_are_noticed(name: str, argtypes: tuple[type, ...], reason: str) -> None:
    library = types.SimpleNamespace(**{key: getattr(iroh_ffi._UniffiLib, key) for key in ffi_bytes._FUNCTIONS})
    setattr(library, name, types.SimpleNamespace(argtypes=argtypes))
    found = unsupported_reason(fake_bindings(_UniffiLib=library))
    assert found is not None
    assert reason in found


@pytest.mark.parametrize("size", [1, 1000, PIECE_BYTES, 3 * PIECE_BYTES + 17])
def test_bytes_arrive(path: str, size: int) -> None:
    if path == "slow":
        size = min(size, 70_000)  # the bindings take a second for 7 MB
    body = os.urandom(size)

    async def test(sender: Any, receiver: Any) -> None:
        for data in (body, bytearray(body), memoryview(body), memoryview(bytearray(b"??" + body))[2:]):
            _, got = await asyncio.gather(write_all(sender, data, Interrupt()), read_all(receiver, size))
            assert got == body

    run(test)


def test_views_of_other_item_sizes_are_written_as_bytes() -> None:
    async def test(sender: Any, receiver: Any) -> None:
        numbers = (ctypes.c_uint32 * 4)(1, 2, 3, 4)
        await write_all(sender, memoryview(numbers).cast("B").cast("I"), Interrupt())
        assert await read_all(receiver, 16) == bytes(numbers)

    run(test)


def test_read_into_stays_inside_its_target_and_ends_with_zero(path: str) -> None:
    async def test(sender: Any, receiver: Any) -> None:
        await write_all(sender, b"", Interrupt())
        await write_all(sender, b"abcdef", Interrupt())
        await sender.finish()
        target = bytearray(b"........")
        view, got = memoryview(target)[2:6], 0
        while got < 4:
            got += await read_into(receiver, view[got:], Interrupt())
        assert target == b"..abcd.."
        assert await read_all(receiver, 2) == b"ef"
        for _ in range(2):
            assert await read_into(receiver, memoryview(bytearray(5)), Interrupt()) == 0

    run(test)


def test_errors_of_the_transport_are_raised_as_such(path: str) -> None:
    async def test(sender: Any, receiver: Any) -> None:
        reading = asyncio.ensure_future(read_into(receiver, memoryview(bytearray(1)), Interrupt()))
        await asyncio.sleep(0)
        await sender.reset(7)
        with pytest.raises(iroh.IrohError):
            await reading
        with pytest.raises(iroh.IrohError):
            await write(sender, memoryview(b"x"), Interrupt())

    run(test)


def test_cancelled_reads_lose_nothing() -> None:
    async def test(sender: Any, receiver: Any) -> None:
        for number in range(30):
            pending = asyncio.ensure_future(read_into(receiver, memoryview(bytearray(4)), Interrupt()))
            for _ in range(number % 4):
                await asyncio.sleep(0)
            pending.cancel()
            await asyncio.wait({pending})
            assert pending.cancelled()
        await write_all(sender, b"kept", Interrupt())
        assert await read_all(receiver, 4) == b"kept"
        assert not ffi_bytes._waits

    run(test)


def test_interrupt_ends_waiting_and_later_calls(path: str) -> None:
    async def test(sender: Any, receiver: Any) -> None:
        interrupt = Interrupt()
        interrupt.check()
        pending = [
            asyncio.ensure_future(read_into(receiver, memoryview(bytearray(4)), interrupt)),
            asyncio.ensure_future(interrupt.wait(asyncio.get_running_loop().create_future())),
        ]
        await asyncio.sleep(0.01)
        interrupt.fire(lambda: KeyError("first"))
        interrupt.fire(lambda: KeyError("second"))
        for task in pending:
            with pytest.raises(KeyError, match="first"):
                await task
        assert interrupt.fired
        with pytest.raises(KeyError, match="first"):
            interrupt.check()
        with pytest.raises(KeyError, match="first"):
            await write_all(sender, b"x" * 10, interrupt)
        await write_all(sender, b"still works", Interrupt())
        assert await read_all(receiver, 11) == b"still works"

    run(test)


def test_interrupted_and_cancelled_at_once() -> None:
    async def main() -> None:
        interrupt = Interrupt()
        waiting = asyncio.ensure_future(interrupt.wait(asyncio.get_running_loop().create_future()))
        await asyncio.sleep(0)
        interrupt.fire(lambda: KeyError("gone"))
        waiting.cancel()
        await asyncio.wait({waiting})
        assert waiting.cancelled()

    asyncio.run(main())


def test_progress_after_the_loop_was_closed_is_ignored() -> None:
    loop = asyncio.new_event_loop()
    wait = ffi_bytes._Wait(loop)
    wait.future = loop.create_future()
    loop.close()
    ffi_bytes._waits[0] = wait
    caller = threading.Thread(target=ffi_bytes._on_progress, args=(0, 1))
    caller.start()
    caller.join()
    assert wait.code == 1
    assert not ffi_bytes._waits
