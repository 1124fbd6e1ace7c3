"""Exactly once for each client and number, in bounded memory, and never twice."""

from __future__ import annotations

import random

import pytest

from minga.core.errors import RejectedError
from minga.core.refusal_code import RefusalCode
from minga.split.server.sessions import Sessions
from minga.split.wire.messages import BatchReply, BeginRequest, TensorHeader
from minga.split.wire.tensors import EncodedReply
from tests.worlds.seeds import seeds


def make(kept_bytes: int = 10_000, **settings: int) -> Sessions:
    return Sessions(random.Random(2).randbytes, kept_bytes, **settings)


def reply(step: int, size: int = 100) -> EncodedReply:
    return EncodedReply(BatchReply((TensorHeader("uint8", (size,), size),), 1.0, step), (bytes(size),))


def begin(sessions: Sessions, client: str = "a", doubt: tuple[int, int] = (0, 0)) -> tuple[int, bool | None]:
    answer = sessions.begin(client, BeginRequest(*doubt), 0)
    return answer.session, answer.applied


def take(sessions: Sessions, session: int, number: int, client: str = "a", size: int = 100) -> bool:
    """Whether the request is applied now; False if its answer was kept."""
    if sessions.check(client, session, number) is not None:
        return False
    sessions.note(client, session, number, reply(number, size))
    return True


def refused(sessions: Sessions, session: int, number: int, client: str = "a") -> bool:
    with pytest.raises(RejectedError, match="begin anew") as caught:
        sessions.check(client, session, number)
    return caught.value.code == RefusalCode.SESSION


def test_the_same_number_gets_the_same_answer_and_only_the_next_is_applied() -> None:
    sessions = make()
    session, _ = begin(sessions)
    assert take(sessions, session, 1)
    kept = sessions.check("a", session, 1)
    assert kept is not None
    assert kept.message.step == 1
    assert not take(sessions, session, 1)
    assert take(sessions, session, 2)
    for number in (0, 1, 4, 2**53):  # behind, and ahead
        assert refused(sessions, session, number)
    assert refused(sessions, session + 1, 3)
    assert refused(sessions, session, 3, client="b")


def test_a_new_session_ends_the_old_one_and_says_what_became_of_it() -> None:
    sessions = make()
    first, unknown = begin(sessions)
    assert unknown is None
    assert take(sessions, first, 1)
    second, applied = begin(sessions, doubt=(first, 1))
    assert applied is True
    assert refused(sessions, first, 2)
    # A session in which nothing was applied does not hide what came before.
    third, applied = begin(sessions, doubt=(first, 2))
    assert applied is False
    assert begin(sessions, doubt=(first, 1))[1] is True
    assert begin(sessions, doubt=(third, 1))[1] is None, "two sessions are remembered, the last and the last used one"
    assert begin(sessions, doubt=(second, 7))[1] is None


def test_answers_are_kept_within_bounds_and_numbers_outlive_them() -> None:
    sessions = make(kept_bytes=3 * 356)
    numbers = {client: begin(sessions, client)[0] for client in "abcde"}
    for client, session in numbers.items():
        assert take(sessions, session, 1, client)
        assert sessions.held_bytes <= 3 * 356
    assert refused(sessions, numbers["a"], 1, "a"), "its answer made room for others, and it is not applied twice"
    assert begin(sessions, "a", (numbers["a"], 1))[1] is True
    assert not take(sessions, numbers["e"], 1, "e")
    assert take(sessions, numbers["b"], 2, "b", size=5000), "the newest answer is kept, whatever it takes"
    assert not take(sessions, numbers["b"], 2, "b", size=5000)


def test_clients_that_were_quiet_for_longest_are_forgotten_and_never_applied_twice() -> None:
    sessions = make(max_clients=2)
    numbers = {client: begin(sessions, client)[0] for client in "ab"}
    assert take(sessions, numbers["a"], 1, "a")
    assert take(sessions, numbers["b"], 1, "b")
    begin(sessions, "c")
    assert len(sessions) == 2
    assert refused(sessions, numbers["a"], 1, "a")
    assert refused(sessions, numbers["a"], 2, "a")
    assert begin(sessions, "a", (numbers["a"], 1))[1] is None, "it says that it does not know"
    assert sessions.held_bytes <= 2 * 356


def test_a_server_that_starts_again_does_not_know_what_was_applied() -> None:
    sessions = make()
    session, _ = begin(sessions)
    assert take(sessions, session, 1)
    assert begin(make(), doubt=(session, 1))[1] is None
    assert refused(make(), session, 2)


@pytest.mark.parametrize("seed", seeds(5, of=20))
def test_whatever_comes_in_whatever_order_nothing_is_applied_twice(seed: int) -> None:
    chance = random.Random(seed)
    sessions = make(kept_bytes=chance.choice([0, 400, 4000]), max_clients=chance.choice([2, 4]))
    begun: dict[str, list[int]] = {client: [] for client in "abcd"}
    applied: set[tuple[str, int, int]] = set()
    for _ in range(400):
        client = chance.choice("abcd")
        if not begun[client] or chance.random() < 0.1:
            begun[client].append(begin(sessions, client, (chance.choice([0, *begun[client]]), chance.randrange(5)))[0])
            continue
        session, number = chance.choice(begun[client][-3:]), chance.randrange(6)
        try:
            is_new = take(sessions, session, number, client)
        except RejectedError:
            continue
        assert not is_new or (client, session, number) not in applied
        assert is_new or (client, session, number) in applied
        applied.add((client, session, number))
    assert applied
