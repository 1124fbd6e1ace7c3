"""Threads that decode the first messages of a kind at once all get them."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Annotated

import msgspec
import pytest

from minga.core.decoding import DECODING_ERRORS, decode_json, decode_msgpack

AT_ONCE = """
import sys, threading
import msgspec
from minga.core.decoding import decode_json, decode_msgpack

sys.setswitchinterval(1e-6)
threads, read = 4, []
for number in range(100):
    inner = [msgspec.defstruct(f"Inner{number}{i}", [(f"a{k}", int) for k in range(10)]) for i in range(4)]
    fields = [*((f"f{i}", kind) for i, kind in enumerate(inner)), *((f"g{k}", dict[str, list[int]]) for k in range(8))]
    outer = msgspec.defstruct(f"Outer{number}", fields)
    first = outer(*(kind(*range(10)) for kind in inner), *({"a": [k]} for k in range(8)))
    together = threading.Barrier(threads)

    def run(decode, data, kind):
        together.wait()
        read.append(decode(data, kind) == first)

    ways = [(decode_msgpack, msgspec.msgpack.encode(first)), (decode_json, msgspec.json.encode(first))]
    running = [threading.Thread(target=run, args=(*ways[i % 2], outer)) for i in range(threads)]
    for each in running: each.start()
    for each in running: each.join()
assert len(read) == 400 and all(read), (len(read), sum(read))
"""


def test_threads_that_decode_the_first_messages_of_a_kind_all_get_them() -> None:
    """Without the lock this ends with a segmentation fault, or with errors in some of the threads."""
    done = subprocess.run([sys.executable, "-c", AT_ONCE], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]


FORKED = """
import os, threading
import msgspec
from minga.core import decoding

kind, held = msgspec.defstruct("Kind", [("count", int)]), threading.Event()

def hold():
    with decoding._learning:
        held.set()
        threading.Event().wait()

threading.Thread(target=hold, daemon=True).start()
held.wait()
if not (child := os.fork()):
    os._exit(0 if decoding.decode_json('{"count": 3}', kind) == kind(3) else 1)
os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_process_that_is_forked_while_a_decoder_is_made_decodes() -> None:
    done = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr[-2000:]


class Small(msgspec.Struct, forbid_unknown_fields=True):
    count: Annotated[int, msgspec.Meta(le=3)]


@pytest.mark.parametrize("body", [b'{"count": 4}', b'{"other": 1}', b"\xff", b"[" * 100_000, b""])
def test_what_does_not_fit_is_refused(body: bytes) -> None:
    with pytest.raises(DECODING_ERRORS):
        decode_json(body, Small)
    with pytest.raises(DECODING_ERRORS):
        decode_msgpack(b"\x81\xa5count\x04" if body.startswith(b"{") else body, Small)
    assert decode_json('{"count": 3}', Small) == decode_msgpack(b"\x81\xa5count\x03", Small) == Small(3)
