"""Roots of Merkle trees: each part is shown by its path, and nothing else is."""

from __future__ import annotations

import pytest

from minga.security.parts.equal_parts import MerkleTree, depth, digest_of, root_of
from minga.security.parts.part_store import PartStore


def parts_of(count: int) -> list[bytes]:
    return [f"part {index}".encode() for index in range(count)]


@pytest.mark.parametrize("count", [*range(1, 18), 255, 256])
def test_each_part_is_shown_by_its_path_and_at_its_place_only(count: int) -> None:
    parts = parts_of(count)
    tree = MerkleTree(list(map(digest_of, parts)))
    for index, part in enumerate(parts):
        path = tree.path(index)
        assert len(path) == depth(count)
        assert root_of(digest_of(part), index, count, path) == tree.root
        assert root_of(digest_of(part + b"!"), index, count, path) != tree.root
        assert root_of(digest_of(part), (index + 1) % count, count, path) != tree.root or count == 1
        for level in range(len(path)):
            wrong = (*path[:level], bytes(31) + b"!", *path[level + 1 :])
            assert root_of(digest_of(part), index, count, wrong) != tree.root


def test_depths() -> None:
    assert [depth(count) for count in (1, 2, 3, 4, 5, 16, 17, 256)] == [0, 1, 2, 2, 3, 4, 5, 8]


def test_paths_of_other_lengths_and_places_outside_show_nothing() -> None:
    parts = parts_of(5)
    tree = MerkleTree(list(map(digest_of, parts)))
    path = tree.path(2)
    for index, count, other in (
        (2, 5, path[:-1]),
        (2, 5, (*path, bytes(32))),
        (5, 5, path),
        (-1, 5, path),
        (2, 4, path),
    ):
        assert root_of(digest_of(parts[2]), index, count, other) is None
    # A node half-way up is no part, although its children are the leaves of a smaller tree.
    left = MerkleTree(list(map(digest_of, parts[:4]))).root
    assert root_of(digest_of(left), 0, 2, path[-1:]) != tree.root


def test_roots_depend_on_parts_their_order_and_their_number() -> None:
    parts = parts_of(4)
    roots = {
        MerkleTree(list(map(digest_of, each))).root
        for each in (parts, parts[::-1], parts[:3], [*parts, b""], [*parts[:3], b""])
    }
    assert len(roots) == 5


def test_cargo_takes_what_was_committed_to() -> None:
    parts = parts_of(3)
    tree = MerkleTree(list(map(digest_of, parts)))
    store = PartStore([len(part) for part in parts], [0, 0, 0])
    assert not store.put_part(1, 2, parts[2], tree.path(2))  # nobody committed to anything yet
    store.roots[1] = tree.root
    assert not store.put_part(1, 2, parts[1], tree.path(2))
    assert not store.put_part(1, 1, parts[2], tree.path(2))
    assert not store.put_part(0, 2, parts[2], tree.path(2))
    assert not store.put_part(1, 2, parts[2], ())
    assert not store.parts
    assert store.put_part(1, 2, parts[2], tree.path(2))
    assert (store.parts, store.paths) == ({(1, 2): parts[2]}, {(1, 2): tree.path(2)})
