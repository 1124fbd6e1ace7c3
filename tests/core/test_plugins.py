"""Registries of plug-ins: what is imported when, whose name counts, and what peers without a package are told."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from minga.core.errors import ConfigurationError
from minga.core.spec.plugins import Origin, Registry, check_recorded, recorded
from minga.core.spec.run_spec import RunSpec
from tests.worlds.plugin_packages import install

GROUP = "minga.tests_only"
BUILTIN = {"whole": "fractions:Fraction", "point": "decimal:Decimal"}
FOREIGN = Origin(package="foreign-numbers", version="1.2")
OTHER_VERSION = Origin(package="foreign-numbers", version="1.3")
OTHERS = Origin(package="others", version="1.2")


def registry(base: str | None = None) -> Registry[object]:
    return Registry(GROUP, "number", BUILTIN, base)


@pytest.fixture
def foreign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on the path with a package that brings one good implementation and some bad ones."""
    entries = {
        "third": "foreign_numbers:Third",
        "half": "foreign_numbers:Half",
        "whole": "foreign_numbers:Third",
        "broken": "foreign_broken:Anything",
        "missing": "foreign_numbers:Nothing",
        "Not A Name": "foreign_numbers:Third",
    }
    modules = {
        "foreign_numbers": "from fractions import Fraction\nclass Third(Fraction): ...\nHalf = 'a text'\n",
        "foreign_broken": "raise RuntimeError('needs a device that is not here')\n",
    }
    install(tmp_path, "foreign-numbers", "1.2", {GROUP: entries}, modules)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in modules:
        sys.modules.pop(name, None)


def test_names_are_listed_without_importing_any_package(foreign: Path) -> None:
    assert registry().names() == ("whole", "point", "broken", "half", "missing", "third")
    assert not {"foreign_numbers", "foreign_broken"} & sys.modules.keys()


def test_a_package_is_imported_when_its_implementation_is_asked_for(foreign: Path) -> None:
    numbers = registry("fractions:Fraction")
    third = numbers.get("third")
    assert third is sys.modules["foreign_numbers"].Third
    assert numbers.get("third") is third
    assert numbers.origin("third") == FOREIGN


def test_a_name_that_comes_with_minga_cannot_be_replaced(foreign: Path) -> None:
    from fractions import Fraction

    assert registry().get("whole") is Fraction
    assert registry().origin("whole") is None
    assert "foreign_numbers" not in sys.modules


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("broken", "'broken' of foreign-numbers 1.2 cannot be loaded: RuntimeError: needs a device"),
        ("missing", "'missing' of foreign-numbers 1.2 cannot be loaded: AttributeError"),
        ("half", "'half' of foreign-numbers 1.2 is no Fraction"),
        ("fourth", "'fourth' is none of whole, point, .*third, and no package brings it"),
    ],
)
def test_what_cannot_be_used_is_told_by_name_and_package(foreign: Path, name: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=f"number: {said}"):
        registry("fractions:Fraction").get(name)


def test_a_broken_package_harms_no_other_name(foreign: Path) -> None:
    numbers = registry()
    with pytest.raises(ConfigurationError):
        numbers.get("broken")
    assert numbers.get("third") is not None
    assert numbers.get("whole") is not None


def test_a_name_that_two_packages_bring_is_nobodys(foreign: Path) -> None:
    install(foreign, "other-numbers", "3", {GROUP: {"third": "other_numbers:Third"}}, {"other_numbers": "Third = 3\n"})
    with pytest.raises(ConfigurationError, match="by foreign-numbers and by other-numbers; uninstall all but one"):
        registry().get("third")


def test_a_package_without_a_version_cannot_be_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "nameless", "1", {GROUP: {"odd": "nameless:Odd"}}, {"nameless": "Odd = 1\n"})
    (tmp_path / "nameless-1.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: nameless\nVersion: so so\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigurationError, match="has no name and version"):
        registry().origin("odd")


# ---- what a run records


def test_the_first_peer_records_origins_and_the_others_compare_them(foreign: Path) -> None:
    uses = [(registry(), "third"), (registry(), "whole")]
    origins = recorded(uses, {})
    assert origins == {"number:third": FOREIGN}
    check_recorded(uses, origins)


@pytest.mark.parametrize(
    ("name", "origin", "said"),
    [
        (
            "third",
            OTHER_VERSION,
            r"of foreign-numbers 1\.3, here is foreign-numbers 1\.2: pip install foreign-numbers==1\.3",
        ),
        ("third", OTHERS, r"'third' of others 1\.2, here is foreign-numbers 1\.2: pip install others==1\.2"),
        ("ninth", OTHERS, r"'ninth' comes from others 1\.2, which is not installed: pip install others==1\.2"),
        ("whole", FOREIGN, r"takes 'whole' from foreign-numbers 1\.2, but here it is minga's own"),
        ("third", None, "the run does not say which package brings 'third'"),
        ("ninth", None, r"'ninth' is none of .*brings it.*"),
    ],
)
def test_a_peer_with_another_package_is_told_what_to_install(
    foreign: Path, name: str, origin: Origin | None, said: str
) -> None:
    origins = {} if origin is None else {f"number:{name}": origin}
    with pytest.raises(ConfigurationError, match=said + "$"):
        check_recorded([(registry(), name)], origins)


def test_each_problem_is_told_on_a_line_of_its_own(foreign: Path) -> None:
    with pytest.raises(ConfigurationError) as caught:
        check_recorded([(registry(), "ninth"), (registry(), "whole"), (registry(), "third")], {})
    assert len(str(caught.value).splitlines()) == 2


def test_a_version_that_the_organiser_pinned_is_kept_or_refused(foreign: Path) -> None:
    pinned = {"number:third": FOREIGN, "recipe:other": Origin(package="recipes", version="1")}
    assert recorded([(registry(), "third")], pinned) == pinned
    with pytest.raises(ConfigurationError, match=r"here is foreign-numbers 1\.2"):
        recorded([(registry(), "third")], {"number:third": Origin(package="foreign-numbers", version="2")})


# ---- in the run spec


def test_origins_are_part_of_the_run_and_survive_each_way_of_writing_it() -> None:
    plain = RunSpec.from_mapping({"name": "guard"})
    spec = plain.with_plugins({"codec:third": FOREIGN})
    assert spec.run_id != plain.run_id
    assert RunSpec.from_canonical(spec.canonical_bytes()) == spec
    assert RunSpec.from_toml(spec.to_toml()) == spec
    assert spec.published({}).plugins == {"codec:third": FOREIGN}
    assert plain.with_plugins({}) == plain


@pytest.mark.parametrize(
    "entry", [{"package": "a; rm -rf /", "version": "1"}, {"package": "a", "version": "1 && b"}, {"package": "-r"}]
)
def test_what_is_no_package_is_refused_before_anybody_is_told_to_install_it(entry: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError, match="plugins"):
        RunSpec.from_mapping({"name": "guard", "plugins": {"codec:x": {"version": "1", **entry}}})
