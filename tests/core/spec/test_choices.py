"""A name and its settings in one text: what is read, what is refused and in which words, and the one spelling."""

from __future__ import annotations

import contextlib
from typing import Annotated, Any, Literal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from minga.core.errors import ConfigurationError
from minga.core.spec.choices import MAX_CHOICE_CHARACTERS, Choice, canonical, parse_choice, resolved
from minga.core.spec.fields import Real, Section, choice, described, real, whole
from minga.core.spec.plugins import Registry
from minga.core.spec.run_spec import RunSpec


class ShelfSettings(Section):
    """Of a shelf."""

    boards: int = whole(4, 1, 9, "how many boards")
    wood: Literal["oak", "2x4"] = choice("oak", "of which wood", "oak", "2x4")
    depth: Real = real(0.5, 0.0, 2.0, "depth in metres")
    painted: bool = described(False, "whether it is painted", "true or false")
    under: str = described("nothing", "what stands below", "a choice")


class Shelf:
    Settings = ShelfSettings


class Chair:
    """Has no settings."""


FURNITURE: Registry[Any] = Registry(
    "minga.tests_only", "furniture", {"shelf": f"{__name__}:Shelf", "chair": f"{__name__}:Chair", "ghost": "no:where"}
)


@pytest.mark.parametrize(
    ("text", "spelling"),
    [
        ("shelf", "shelf"),
        ("shelf()", "shelf"),
        (" shelf ( boards = 4 ) ", "shelf"),
        ("shelf(wood=2x4,boards=3)", "shelf(boards=3, wood=2x4)"),
        ("shelf(depth=1)", "shelf(depth=1.0)"),
        ("shelf(depth=1.50)", "shelf(depth=1.5)"),
        ("shelf(depth=1e-05, painted=true)", "shelf(depth=1e-05, painted=true)"),
        ("shelf(depth=-0.0)", "shelf(depth=0.0)"),
        ("shelf(under=shelf(boards=2,wood=oak), boards=5)", "shelf(boards=5, under=shelf(boards=2, wood=oak))"),
        ("chair", "chair"),
        ("ghost", "ghost"),  # which is not imported for its name
    ],
)
def test_each_choice_has_one_spelling(text: str, spelling: str) -> None:
    assert canonical(FURNITURE, text) == spelling
    assert canonical(FURNITURE, spelling) == spelling


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("stool", "furniture: 'stool' is none of shelf, chair, ghost, and no package brings it"),
        ("shelff(boards=2)", "did you mean shelf"),
        ("shelf(boards=0)", "furniture 'shelf': boards = 0: must be a whole number from 1 to 9"),
        ("shelf(boards=1.5)", "boards = 1.5: must be a whole number"),
        ("shelf(boards=many)", "boards = 'many': must be a whole number"),
        ("shelf(board=2)", "board: unknown key; did you mean boards?"),
        ("shelf(wood=oaks)", 'wood = \'oaks\': must be one of "oak", "2x4"; did you mean oak?'),
        ("shelf(depth=2.5)", "depth = 2.5: must be a number of at least 0 and at most 2"),
        ("shelf(painted=1)", "painted = 1: must be true or false"),
        ("shelf(boards=2, boards=2)", "'boards' is set twice"),
        ("shelf(boards)", "'boards' is no key=value"),
        ("shelf(boards=2,)", "'' is no key=value"),
        ("shelf(under=chair(x)", "is not NAME"),
        ("chair(legs=3)", "furniture: 'chair' has no settings"),
        ("shelf(under=a b)", "'a b' is not NAME or NAME(key=value, key=value)"),
        ("shelf(boards=2))", "is not NAME"),
        ("shelf" + "(under=shelf" * 9 + ")" * 9, "is not NAME"),
        ("Shelf", "is not NAME"),
        ("", "is not NAME"),
        (None, "None is not NAME"),
        ("x" * 10_000, "is not NAME"),
    ],
)
def test_what_cannot_be_made_is_refused_in_words(text: object, said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        canonical(FURNITURE, text)
    assert said in str(caught.value)
    assert str(caught.value).startswith("furniture")
    assert len(str(caught.value)) < 400


def test_all_problems_of_a_choice_are_named() -> None:
    with pytest.raises(ConfigurationError) as caught:
        resolved(FURNITURE, "shelf(boards=0, depth=9)")
    assert len(str(caught.value).splitlines()) == 2


def test_what_makes_a_choice_gets_checked_settings() -> None:
    found = resolved(FURNITURE, "shelf(boards=2)")
    assert (found.name, found.maker, found.has_settings) == ("shelf", Shelf, True)
    assert found.settings == ShelfSettings(boards=2)
    assert not resolved(FURNITURE, "chair").has_settings


VALUES = st.booleans() | st.integers(-(10**17), 10**17) | st.floats(0, 1e17) | st.sampled_from(["a", "2bit", "x.y"])
KEYS: Annotated[Any, "keys"] = st.from_regex(r"[a-z][a-z0-9_]{0,5}", fullmatch=True)


@example({"a": 0.0002122465182732238})  # the longest fractions that are written without an exponent
@given(st.dictionaries(KEYS, VALUES, max_size=3))
def test_what_is_written_is_read_again(given_settings: dict[str, Any]) -> None:
    made = Choice("shelf", given_settings)
    if len(str(made)) <= MAX_CHOICE_CHARACTERS:
        assert parse_choice(str(made)) == made


@given(st.text(max_size=60) | st.text("shelf(),= 12.", max_size=40))
def test_no_text_breaks_the_parser(text: str) -> None:
    with contextlib.suppress(ConfigurationError):
        assert parse_choice(str(parse_choice(text))) == parse_choice(text)


def test_a_run_spec_has_one_spelling_of_blanks_and_keeps_the_ids_of_bare_names() -> None:
    def run(text: str) -> RunSpec:
        return RunSpec.from_mapping({"name": "x", "averaging": {"codec": text}})

    assert run("int8").averaging.codec == "int8"
    assert run("shelf( boards=3,depth=1 )").averaging.codec == "shelf(boards=3, depth=1)"
    assert run("shelf(boards=3,depth=1)").run_id == run("shelf(boards = 3, depth = 1)").run_id
    with pytest.raises(ConfigurationError, match=r"averaging\.codec = 'a b': 'a b' is not NAME"):
        run("a b")
