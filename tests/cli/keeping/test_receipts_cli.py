"""`minga runs receipts` and `minga runs verify`, without a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from minga.cli.terminal.exit_codes import STORAGE
from minga.core.aio import DiskWrites
from minga.identity.keys.keys import Identity
from minga.identity.links.links import EntryPoint, Link
from minga.identity.links.signed_spec import SignedRunSpec
from minga.keeping.archive import ArchiveRecord, write_record
from minga.keeping.rejoin import SPEC_FILE
from minga.receipts.attestation import Claim, JudgedCount
from minga.receipts.book_file import BookFile
from tests.worlds.cli_run import last_json, run
from tests.worlds.receipt_world import IDS, KEYS, make_count, sign
from tests.worlds.swarm_tools import make_spec

ORGANISER = KEYS[2]
SPEC = make_spec(16)
LINK = str(Link(SPEC.run_id, ORGANISER.peer_id, (EntryPoint(ORGANISER.peer_id, ("127.0.0.1:9",)),)))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a run in which the first peer took part, with two others."""
    (tmp_path / SPEC_FILE).write_bytes(SignedRunSpec.sign(SPEC, ORGANISER).encode())
    file = BookFile(tmp_path, IDS[0], DiskWrites())
    for step in (10, 15):
        count = make_count(step, [Claim(4, 4, 100 + index, 2048) for index in range(3)])
        file.add_count(JudgedCount(count, b"", is_witness=True))
        for key in KEYS[:3]:
            file.add(sign(key, count, run=SPEC.run_id))
    return tmp_path


def test_receipts_are_shown_exported_and_verified(folder: Path) -> None:
    out = str(folder / "receipts.bin")
    shown = last_json(run("runs", "receipts", str(folder), "--json").stdout)
    assert [peer["samples"] for _, peer in sorted(shown["peers"].items())] == [
        2 * (100 + index) for _, index in sorted((peer, index) for index, peer in enumerate(IDS[:3]))
    ]
    exported = last_json(run("runs", "receipts", str(folder), "--out", out, "--json").stdout)
    own = {IDS[0]: {"samples": 200, "steps": 8, "reduced_bytes": 4 << 20, "claims_counted": 2, "claims": 2}}
    assert exported["peers"] == own
    told = run("runs", "verify", out, "--of", LINK, "--json")
    proven = last_json(told.stdout)
    assert (told.returncode, proven["ok"], proven["peers"]) == (0, True, own)
    assert (proven["attesters"], proven["seen_by_organiser"], proven["counts"]) == (3, 2, 2)
    assert last_json(run("runs", "verify", out, "--of", str(folder), "--json").stdout)["ok"]
    words = run("runs", "verify", out).stdout
    assert SPEC.run_id in words
    assert "anybody can make keys" in words


def test_a_peer_that_claims_nothing_yet_has_no_file(folder: Path) -> None:
    out = str(folder / "receipts.bin")
    book = next(folder.glob("receipts-*.bin"))
    book.rename(book.with_name("receipts-0000000000.bin"))
    told = run("runs", "receipts", str(folder), "--out", out)
    assert told.returncode != 0
    assert "there are no receipts of the peer 0000000000 yet" in " ".join(told.stderr.split())
    assert not Path(out).exists()


def test_a_file_that_cannot_be_written_is_told(folder: Path) -> None:
    (folder / "a file").touch()
    told = run("runs", "receipts", str(folder), "--out", str(folder / "a file" / "below"))
    assert (told.returncode, "cannot be written" in told.stderr) == (STORAGE, True)


def test_an_archived_checkpoint_says_which_run_it_should_be(folder: Path) -> None:
    out, archive = str(folder / "receipts.bin"), folder / "archive"
    run("runs", "receipts", str(folder), "--out", out)
    archive.mkdir()
    record = ArchiveRecord(SPEC.run_id, "kept", 20, "cd" * 32, None, 1.7e9, ORGANISER.peer_id)
    write_record(archive, record, ORGANISER)
    assert last_json(run("runs", "verify", out, "--of", str(archive), "--json").stdout)["ok"]
    other = Identity.from_seed(bytes(32))
    write_record(archive, ArchiveRecord("ab" * 32, "kept", 20, "cd" * 32, None, 1.7e9, other.peer_id), other)
    told = run("runs", "verify", out, "--of", str(archive), "--json")
    assert (told.returncode, last_json(told.stdout)["ok"]) == (1, False)


def test_what_cannot_be_checked_is_said(folder: Path) -> None:
    (folder / "nonsense").write_bytes(b"minga receipts 1\nno")
    told = run("runs", "verify", str(folder / "nonsense"))
    assert told.returncode == 1
    assert "proves nothing" in told.stdout
    told = run("runs", "verify", str(folder / "missing"))
    assert "cannot be read" in told.stderr
    (folder / "empty").mkdir()
    told = run("runs", "receipts", str(folder / "empty"))
    assert "no peer has kept receipts here" in told.stderr
    assert "a monitor keeps none" in " ".join(told.stderr.split())
