from __future__ import annotations

import contextlib
import functools
import json
import os
import pickle
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from hypothesis import given
from hypothesis import strategies as st

from minga.core.errors import IdentityError
from minga.identity.keys import key_file, keys
from minga.identity.keys.key_file import FileLock
from minga.identity.keys.keys import Identity, is_peer_id, verify

SOURCE = Path(keys.__file__).parents[3]
posix_only = pytest.mark.skipif(os.name != "posix", reason="file modes exist on POSIX only")


def run_python(code: str, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


# ---- keys and signatures


def test_the_id_follows_rfc_8032() -> None:
    # RFC 8032, section 7.1, test 1
    identity = Identity.from_seed(bytes.fromhex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60"))
    assert identity.peer_id == "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"
    assert is_peer_id(identity.peer_id)


HEIGHT = int.from_bytes(bytes.fromhex("26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05"), "little")
FIELD, SIGN = 2**255 - 19, 1 << 255
POINTS = {"0": 0, "-0": SIGN, "1": 1, "-1": FIELD - 1}
POINTS |= {"h": HEIGHT, "h'": HEIGHT | SIGN, "-h": FIELD - HEIGHT, "-h'": (FIELD - HEIGHT) | SIGN}
"""Of the curve, those that give zero when they are added up eight times."""
OTHER_WAYS = [FIELD, FIELD | SIGN, 1 | SIGN, FIELD + 1, FIELD + 1 | SIGN, (FIELD - 1) | SIGN]
"""To write some of them."""


@pytest.mark.parametrize("point", [*POINTS.values(), *OTHER_WAYS], ids=[*POINTS, *"abcdef"])
def test_keys_for_which_anybody_can_sign_prove_nothing(point: int) -> None:
    key, signature = point.to_bytes(32, "little"), bytes([1, *bytes(63)])
    messages = [b"message %d" % number for number in range(100)]
    public = Ed25519PublicKey.from_public_bytes(key)
    forged = 0
    for message in messages:
        with contextlib.suppress(InvalidSignature):
            public.verify(signature, keys._SIGNED_LABEL + keys._digest(message, b""))
            forged += 1
    assert forged or point in OTHER_WAYS, "else there would be nothing to refuse"
    assert not any(verify(key.hex(), signature, message) for message in messages)


def test_the_secret_is_not_shown_or_pickled() -> None:
    identity = Identity.generate()
    assert identity.seed.hex() not in repr(identity)
    with pytest.raises(TypeError):
        pickle.dumps(identity)


@pytest.mark.parametrize("seed", [b"", b"x" * 31, b"x" * 33, "x" * 32, None])
def test_bad_seeds(seed: object) -> None:
    with pytest.raises(IdentityError):
        Identity.from_seed(seed)  # type: ignore[arg-type]


@given(st.binary(max_size=200), st.binary(max_size=40), st.binary(min_size=32, max_size=32))
def test_signatures(message: bytes, context: bytes, seed: bytes) -> None:
    identity = Identity.from_seed(seed)
    signature = identity.sign(message, context=context)
    assert verify(identity.peer_id, signature, message, context=context)
    assert not verify(identity.peer_id, signature, message + b"x", context=context)
    assert not verify(identity.peer_id, signature, message, context=context + b"x")
    assert not verify(Identity.generate().peer_id, signature, message, context=context)
    assert not verify(identity.peer_id, signature[:-1] + bytes([signature[-1] ^ 1]), message, context=context)


def test_context_and_message_cannot_be_shifted_into_each_other() -> None:
    identity = Identity.generate()
    assert not verify(identity.peer_id, identity.sign(b"bc", context=b"a"), b"c", context=b"ab")
    with pytest.raises(ValueError, match="255"):
        identity.sign(b"", context=b"x" * 256)


@pytest.mark.parametrize(
    "peer_id", ["", "ab", "g" * 64, "AB" * 32, "ab" * 32 + "\n", "\uff10" * 64, "ff" * 32, "00" * 32]
)
def test_malformed_ids_verify_nothing(peer_id: str) -> None:
    identity = Identity.generate()
    assert not verify(peer_id, identity.sign(b"m"), b"m")


@pytest.mark.parametrize("signature", [b"", b"x", b"\0" * 64, b"\xff" * 64, b"x" * 65])
def test_malformed_signatures_verify_nothing(signature: bytes) -> None:
    assert not verify(Identity.generate().peer_id, signature, b"m")


# ---- the key file


def test_the_default_file_is_in_the_users_data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_file.platformdirs, "user_data_path", lambda name, **_: tmp_path / name)
    identity = Identity.load_or_create()
    assert Identity.load_or_create(tmp_path / "minga" / "identity.json").peer_id == identity.peer_id
    assert key_file.default_path() == tmp_path / "minga" / "identity.json"


@posix_only
def test_the_key_is_private(tmp_path: Path) -> None:
    path = tmp_path / "identity.json"
    old = os.umask(0)
    try:
        Identity.load_or_create(path)
    finally:
        os.umask(old)
    assert path.stat().st_mode & 0o777 == 0o600


@posix_only
@pytest.mark.parametrize("mode", [0o604, 0o640, 0o644, 0o620, 0o610])
def test_a_key_that_others_can_open_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "identity.json"
    Identity.load_or_create(path)
    path.chmod(mode)
    with pytest.raises(IdentityError, match="chmod 600"):
        Identity.load_or_create(path)
    with pytest.raises(IdentityError, match="chmod 600"):
        Identity.acquire(path)


def good_fields() -> dict[str, object]:
    identity = Identity.from_seed(b"s" * 32)
    return {"format": "minga-identity-1", "peer_id": identity.peer_id, "secret_key": identity.seed.hex()}


def write_private(path: Path, body: bytes) -> None:
    path.write_bytes(body)
    path.chmod(0o600)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x00\xff\xfe",
        b"[]",
        b"null",
        b"[" * 4000,
        b"1" * 4096,
        b" " * 5000,
        json.dumps({**good_fields(), "secret_key": "ab" * 32}).encode(),
        json.dumps({**good_fields(), "secret_key": 5}).encode(),
        json.dumps({**good_fields(), "secret_key": "AB" * 32}).encode(),
        json.dumps({**good_fields(), "extra": 1}).encode(),
        json.dumps({**good_fields(), "format": "something else"}).encode(),
        json.dumps({**good_fields(), "format": None}).encode(),
        json.dumps(good_fields()).encode()[:-20],
    ],
)
def test_damaged_files_are_named_and_left_alone(tmp_path: Path, body: bytes) -> None:
    path = tmp_path / "identity.json"
    write_private(path, body)
    with pytest.raises(IdentityError, match=r"identity\.json is damaged.*move it away"):
        Identity.load_or_create(path)
    assert path.read_bytes() == body


def test_a_file_of_a_later_version_is_named(tmp_path: Path) -> None:
    write_private(tmp_path / "k", json.dumps({**good_fields(), "format": "minga-identity-2"}).encode())
    with pytest.raises(IdentityError, match="update minga"):
        Identity.load_or_create(tmp_path / "k")


def test_places_that_cannot_hold_a_key(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(IdentityError, match="--identity"):
        Identity.load_or_create(tmp_path / "file" / "identity.json")
    with pytest.raises(IdentityError, match="--identity"):
        Identity.load_or_create(tmp_path)


@pytest.mark.parametrize("hard_links", [True, False])
def test_all_who_create_at_once_get_the_same_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hard_links: bool
) -> None:
    if not hard_links:
        monkeypatch.setattr(os, "link", refuse_links)
    path, barrier, ids = tmp_path / "identity.json", threading.Barrier(8), []

    def create() -> None:
        barrier.wait()
        ids.append(Identity.load_or_create(path).peer_id)

    threads = [threading.Thread(target=create) for _ in range(8 if hard_links else 1)]
    if not hard_links:
        barrier = threading.Barrier(1)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(ids) == len(threads)
    assert len(set(ids)) == 1
    assert [entry.name for entry in tmp_path.iterdir()] == ["identity.json"]


def refuse_links(*_: object) -> None:
    raise OSError(95, "Operation not supported")


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(IdentityError, match="No space left"):
        Identity.load_or_create(tmp_path / "identity.json")
    assert list(tmp_path.iterdir()) == []


# ---- several peers on one machine


def test_a_second_peer_gets_a_sibling_key(tmp_path: Path) -> None:
    path = tmp_path / "identity.json"
    with Identity.acquire(path) as first, Identity.acquire(path) as second, Identity.acquire(path) as third:
        assert [held.path.name for held in (first, second, third)] == [
            "identity.json",
            "identity-2.json",
            "identity-3.json",
        ]
        assert len({held.identity.peer_id for held in (first, second, third)}) == 3
        second.release()
        second.release()
        assert not second.is_held
        with Identity.acquire(path) as again:
            assert again.identity.peer_id == second.identity.peer_id
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["identity-2.json", "identity-3.json", "identity.json"]


def test_a_damaged_sibling_keeps_no_peer_from_the_next_and_a_damaged_key_is_told(tmp_path: Path) -> None:
    path = tmp_path / "identity.json"
    with Identity.acquire(path) as first:
        (tmp_path / "identity-2.json").write_text("{}")
        with Identity.acquire(path) as second, Identity.acquire(path, lambda peer: (peer is not None,)) as third:
            assert [held.path.name for held in (second, third)] == ["identity-3.json", "identity-4.json"]
        path.write_text("{}")
        with pytest.raises(IdentityError, match=r"identity\.json"):
            Identity.acquire(path)
    assert first.path == path


def test_siblings_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "MAX_IDENTITIES_PER_FILE", 2)
    path = tmp_path / "identity.json"
    with Identity.acquire(path), Identity.acquire(path), pytest.raises(IdentityError, match="--ephemeral"):
        Identity.acquire(path)


def test_a_file_system_without_locks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Path) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(FileLock, "try_acquire", staticmethod(refuse))
    with pytest.raises(IdentityError, match="No locks available"):
        Identity.acquire(tmp_path / "identity.json")


def test_a_gap_or_a_damaged_file_hides_no_key(tmp_path: Path) -> None:
    third, fifth = (Identity.load_or_create(tmp_path / f"identity-{number}.json").peer_id for number in (3, 5))
    (tmp_path / "identity-2.json").write_text("{}")
    assert [key.peer_id for key in Identity.stored(tmp_path / "identity.json").values()] == [third, fifth]
    found = Identity.stored(tmp_path / "identity.json", {fifth, "ab" * 32})
    assert [path.name for path in found] == ["identity-5.json"]
    with Identity.acquire(tmp_path / "identity.json", lambda peer: (peer != fifth,)) as held:
        assert held.identity.peer_id == fifth


def test_a_file_that_may_hold_the_key_is_named(tmp_path: Path) -> None:
    path = tmp_path / "identity.json"
    assert Identity.stored(path) == {}
    Identity.load_or_create(path)
    assert Identity.stored(path, {"ab" * 32}) == {}
    (tmp_path / "identity-2.json").write_text("{}")
    with pytest.raises(IdentityError, match=r"identity-2\.json"):
        Identity.stored(path, {"ab" * 32})
    path.unlink()
    with pytest.raises(IdentityError, match=r"identity-2\.json"):
        Identity.stored(path)
    with Identity.acquire(path) as held:
        assert held.path == path, "made, as no file that cannot be read is to be used"


@posix_only
def test_a_read_only_key_can_be_held(tmp_path: Path) -> None:
    path = tmp_path / "identity.json"
    Identity.load_or_create(path)
    path.chmod(0o400)
    with Identity.acquire(path) as held:
        assert held.path == path


HOLD = """
import sys
from pathlib import Path
from minga.identity.keys.keys import Identity
held = Identity.acquire(Path(sys.argv[1]))
print(held.path.name, held.identity.peer_id, flush=True)
sys.stdin.read()
"""


def test_a_killed_process_frees_its_key(tmp_path: Path) -> None:
    path = tmp_path / "identity.json"
    with run_python(HOLD, path) as one, run_python(HOLD, path) as two:
        assert one.stdout is not None
        assert two.stdout is not None
        names, ids = zip(one.stdout.readline().split(), two.stdout.readline().split(), strict=True)
        assert set(names) == {"identity.json", "identity-2.json"}
        assert len(set(ids)) == 2
        with Identity.acquire(path) as mine:
            assert mine.path.name == "identity-3.json"
        one.kill()
        two.kill()
    with Identity.acquire(path) as first, Identity.acquire(path) as second:
        assert {first.identity.peer_id, second.identity.peer_id} == set(ids)


FORK = """
import os, sys
from pathlib import Path
from minga.identity.keys.keys import Identity
held = Identity.acquire(Path(sys.argv[1]))
if os.fork() == 0:
    os.write(1, b"child\\n")  # in one piece, so that lines do not mix
    sys.stdin.read()
    os._exit(0)
os.write(1, b"parent\\n")
sys.stdin.read()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_an_orphaned_fork_does_not_keep_the_key(tmp_path: Path) -> None:
    path = tmp_path / "identity.json"
    with run_python(FORK, path) as parent:
        assert parent.stdout is not None
        assert {parent.stdout.readline(), parent.stdout.readline()} == {"parent\n", "child\n"}
        with Identity.acquire(path) as other:
            assert other.path != path
        parent.kill()
        parent.wait()
        # The child still runs: it ends when this process closes its standard input.
        with Identity.acquire(path) as mine:
            assert mine.path == path


def test_a_process_remembers_more_signatures_where_it_is_told_to_and_never_fewer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(keys, "_verified", functools.lru_cache(2)(keys._verify_digest))
    for count, remembered in ((1, 2), (5, 5), (3, 5), (6, 10)):
        keys.remember_signatures(count)
        assert keys._verified.cache_info().maxsize == remembered
