from __future__ import annotations

import copy
import random
import string
from dataclasses import replace

import pytest
import segno
from hypothesis import given
from hypothesis import strategies as st

from minga.core.errors import LinkError
from minga.identity.links.links import (
    MAX_BODY_BYTES,
    MAX_LINK_CHARACTERS,
    EntryPoint,
    Link,
    _base32,
    _checksum,
    encode_body,
)

RUN, ORGANISER, OTHER = "1f" * 32, "2e" * 32, "3d" * 32
LINK = Link(
    RUN,
    ORGANISER,
    (
        EntryPoint(ORGANISER, ("192.168.1.5:40123", "[2001:db8::7]:443"), "https://relay.example.org/"),
        EntryPoint(OTHER, ("203.0.113.9:1",)),
    ),
)

hex_ids = st.binary(min_size=32, max_size=32).map(bytes.hex)
endpoints = st.one_of(
    st.tuples(st.ip_addresses(v=4), st.integers(1, 65535)).map(lambda pair: f"{pair[0]}:{pair[1]}"),
    st.tuples(st.ip_addresses(v=6), st.integers(1, 65535)).map(lambda pair: f"[{pair[0]}]:{pair[1]}"),
)
hosts = st.text(string.ascii_lowercase + string.digits + "-", min_size=1, max_size=30).map(
    lambda text: f"r{text}.example"
)
relays = st.none() | hosts.map(lambda host: f"https://{host}") | hosts.map(lambda host: f"https://{host}:8443/")


@st.composite
def links(draw: st.DrawFn) -> Link:
    organiser = draw(hex_ids)
    peers = draw(st.lists(hex_ids | st.just(organiser), min_size=1, max_size=4, unique=True))
    entries = tuple(EntryPoint(peer, tuple(draw(st.lists(endpoints, max_size=4))), draw(relays)) for peer in peers)
    authority = draw(st.none() | hosts.map(lambda host: f"https://{host}:8443/run") | st.just("http://127.0.0.1:8470"))
    return Link(draw(hex_ids), organiser, entries, authority=authority)


def seal(body: bytes) -> str:
    return f"minga1{_base32(body + _checksum(body))}"


@given(links())
def test_links_are_read_back(link: Link) -> None:
    text = str(link)
    assert Link.parse(text) == link
    assert str(Link.parse(text)) == text
    assert len(text) <= MAX_LINK_CHARACTERS


def test_a_usual_link_is_short() -> None:
    text = str(Link(RUN, ORGANISER, (EntryPoint(ORGANISER, ("192.168.1.5:40123", "203.0.113.9:40123")),)))
    assert len(text) <= 145
    assert segno.make(text.upper(), mode="alphanumeric", error="l").version <= 5


@pytest.mark.parametrize("seed", range(3))
def test_every_single_typo_is_detected(seed: int) -> None:
    text = str(LINK)
    generator = random.Random(seed)
    others = string.ascii_lowercase + string.digits
    for index, right in enumerate(text):
        for wrong in generator.sample([c for c in others if c != right], 6):
            with pytest.raises(LinkError):
                Link.parse(text[:index] + wrong + text[index + 1 :])


def test_all_typos_of_some_characters_are_detected() -> None:
    text = str(LINK)
    for index in (6, 8, len(text) // 2, len(text) - 2, len(text) - 1):
        for wrong in set(string.printable + "\u0131\u017f\u212a") - {text[index], text[index].upper()}:
            if wrong.isspace():
                continue
            with pytest.raises(LinkError):
                Link.parse(text[:index] + wrong + text[index + 1 :])


def test_missing_doubled_and_swapped_characters_are_detected() -> None:
    text = str(LINK)
    for index in range(len(text)):
        damaged = [text[:index] + text[index + 1 :], text[:index] + text[index] + text[index:]]
        if index + 1 < len(text) and text[index] != text[index + 1]:
            damaged.append(text[:index] + text[index + 1] + text[index] + text[index + 2 :])
        for bad in damaged:
            with pytest.raises(LinkError):
                Link.parse(bad)


def test_every_truncation_is_detected() -> None:
    text = str(LINK)
    for length in range(len(text)):
        with pytest.raises(LinkError, match=r"cut off|mistyped|empty|end is missing|last character"):
            Link.parse(text[:length])


@pytest.mark.parametrize(
    "paste",
    [
        "  {}\n",
        "<{}>",
        "`{}`.",
        "**{}**",
        '"{}"',
        "\u201c{}\u201d",
        "\ufeff{}\u200b",
        "({}),",
        "minga join {}",
        "$ minga  JOIN '{}'",
        "`minga status {}`",
        "> {}",
        "> > minga join {}",
    ],
)
def test_dressing_is_taken_off(paste: str) -> None:
    assert Link.parse(paste.format(LINK)) == LINK


def test_case_and_line_breaks_carry_nothing() -> None:
    text = str(LINK)
    assert Link.parse(text.upper()) == LINK
    assert Link.parse(text.capitalize()) == LINK
    assert Link.parse(text[:70] + "\r\n  " + text[70:]) == LINK
    assert Link.parse(text[:70] + "\u00ad" + text[70:]) == LINK
    assert Link.parse(f"> minga join\n> {text[:70]}\n>{text[70:]}\n") == LINK, "quoted by a mail program"


def test_a_link_is_its_word() -> None:
    assert isinstance(LINK, str)
    assert {LINK, str(LINK), Link.parse(LINK)} == {str(LINK)}
    assert "\n".join([LINK, ""]) == f"{LINK}\n"
    assert copy.deepcopy(LINK).entries == replace(LINK, authority=None).entries == LINK.entries


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("", "empty"),
        ("   ", "empty"),
        ("min", "cut off after 3"),
        ("https://example.org", "begins with minga1"),
        ("join " + str(LINK), "begins with minga1"),
        ("minga join LINK", "'minga join LINK' is no link"),  # as it was typed
        ("x" * 100, "'" + "x" * 40 + "…' is no link"),
        (str(LINK) + " please", "bytes too many|cut off|last character"),
        (str(LINK).replace("minga1", "minga2"), "format 2.*update minga"),
        (str(LINK) + str(LINK), "'1', which no link contains"),
        (str(LINK)[:40] + "!" + str(LINK)[41:], "character 41 of the link is '!'"),
        ("minga1" + "a" * 16000, "characters long"),
        ("minga1", "cut off|end is missing"),
        ("minga1" + "a" * 16, "bytes too many"),
    ],
)
def test_mistakes_are_named(text: str, cause: str) -> None:
    with pytest.raises(LinkError, match=cause):
        Link.parse(text)


@given(st.text(max_size=300) | st.text("abcdefghijklmnopqrstuvwxyz234567", max_size=300).map("minga1{}".format))
def test_garbage(text: str) -> None:
    with pytest.raises(LinkError):
        Link.parse(text)


# ---- bodies whose checksum is right


@given(st.binary(max_size=200))
def test_garbage_behind_a_right_checksum(garbage: bytes) -> None:
    body = bytes.fromhex(RUN + ORGANISER) + garbage
    body = (len(body) + 2).to_bytes(2, "big") + body
    try:
        link = Link.parse(seal(body))
    except LinkError:
        return
    assert str(link) == seal(body)


@pytest.mark.parametrize(
    "entries",
    [
        b"",  # nobody to enter by
        b"\x90",  # a reserved flag
        b"\xa0",
        b"\x89" + bytes(1 + 54),  # nine endpoints
        b"\x81",  # no family
        b"\x81\x00\x01\x02\x03\x04",  # half an endpoint
        b"\x81\x00\x01\x02\x03\x04\x00\x00",  # port 0
        b"\x81\x02\x01\x02\x03\x04\x00\x01",  # a family too many
        b"\x00" + bytes(31),  # half a peer id
        b"\x00" + bytes.fromhex(ORGANISER),  # the organiser in full
        b"\xc0",  # no relay
        b"\xc0\x00",
        b"\xc0\x05abc",
        b"\xc0\x03a\xffc",
        b"\xc0\x03a c",
        b"\x80\x80",  # one peer twice
        b"\x80\x10",  # no authority
        b"\x80\x10\x05abc",
        b"\x80\x10\x03a\xffc",
        b"\x80\x10\x0bhttp://a.io",
        b"\x80\x10\x0chttps://a.io\x80",  # something behind it
        b"\x10\x0chttps://a.io",  # nobody to enter by
        b"\x80" * 9,
    ],
)
def test_sense_is_checked_behind_a_right_checksum(entries: bytes) -> None:
    body = bytes.fromhex(RUN + ORGANISER) + entries
    with pytest.raises(LinkError):
        Link.parse(seal((len(body) + 2).to_bytes(2, "big") + body))


# ---- values that no link can carry


@pytest.mark.parametrize("bad", ["", "ab", "AB" * 32, "0x" + "1f" * 31, "1f" * 33, None, 5])
def test_bad_ids(bad: object) -> None:
    with pytest.raises(LinkError):
        Link(bad, ORGANISER, LINK.entries)  # type: ignore[arg-type]
    with pytest.raises(LinkError):
        Link(RUN, bad, LINK.entries)  # type: ignore[arg-type]
    with pytest.raises(LinkError):
        EntryPoint(bad)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "bad",
    [
        "",
        "192.168.1.5",
        "192.168.1.5:0",
        "192.168.1.5:65536",
        "192.168.1.256:1",
        "192.168.1:1",
        "::1:80",
        "[::1]",
        "[fe80::1%eth0]:80",
        "[1.2.3.4]:80",
        "example.org:80",
        "192.168.1.5:80 ",
        "1.2.3.4:-1",
        None,
        80,
    ],
)
def test_bad_endpoints(bad: object) -> None:
    with pytest.raises(LinkError, match=r"192\.0\.2\.7:4433"):
        EntryPoint(ORGANISER, (bad,))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "bad",
    [
        "",
        "http://relay.example",
        "https://",
        "https:///path",
        "https://user:secret@relay.example",
        "https://relay.example:0",
        "https://relay.example:99999",
        "https://relay.example/ x",
        "https://r\u00e9lais.example",
        "https://" + "r" * 200,
        5,
    ],
)
def test_bad_relays(bad: object) -> None:
    with pytest.raises(LinkError, match="https://"):
        EntryPoint(ORGANISER, (), bad)  # type: ignore[arg-type]


def test_bounds() -> None:
    with pytest.raises(LinkError, match="at most 8"):
        EntryPoint(ORGANISER, ("1.2.3.4:5",) * 9)
    with pytest.raises(LinkError, match="tuple"):
        EntryPoint(ORGANISER, ["1.2.3.4:5"])  # type: ignore[arg-type]
    with pytest.raises(LinkError, match="1 to 8"):
        Link(RUN, ORGANISER, ())
    with pytest.raises(LinkError, match="1 to 8"):
        Link(RUN, ORGANISER, tuple(EntryPoint(f"{i:064x}") for i in range(9)))
    with pytest.raises(LinkError, match="only once"):
        Link(RUN, ORGANISER, (EntryPoint(OTHER), EntryPoint(OTHER)))
    with pytest.raises(LinkError, match="tuple of Entry"):
        Link(RUN, ORGANISER, ("x",))  # type: ignore[arg-type]
    large = EntryPoint(OTHER, ("[2001:db8::7]:443",) * 8, "https://" + "r" * 190)
    with pytest.raises(LinkError, match="name fewer"):
        Link(RUN, ORGANISER, tuple(EntryPoint(f"{i:064x}", large.direct, large.relay) for i in range(6)))
    assert len(encode_body(RUN, ORGANISER, (large,))) < MAX_BODY_BYTES


def test_endpoints_are_kept_in_their_shortest_spelling() -> None:
    assert EntryPoint(ORGANISER, ("[2001:0db8:0:0::7]:0443",)).direct == ("[2001:db8::7]:443",)


# ---- QR codes


def modules(picture: str) -> list[list[bool]]:
    rows: list[list[bool]] = []
    for line in picture.replace("\x1b[30;107m", "").replace("\x1b[0m", "").split("\n"):
        codes = [" ▄▀█".index(character) for character in line]
        rows += [[bool(code & 2) for code in codes], [bool(code & 1) for code in codes]]
    return rows


def test_the_qr_code_shows_the_link() -> None:
    code = segno.make(str(LINK).upper(), error="l", micro=False)
    assert code.mode == "alphanumeric"
    drawn = modules(LINK.qr())
    wanted = [[bool(module) for module in row] for row in code.matrix_iter(border=2)]
    assert drawn[: len(wanted)] == wanted
    assert all(not any(row) for row in drawn[len(wanted) :])


def test_the_largest_link_fits_into_a_qr_code() -> None:
    entries = tuple(EntryPoint(f"{i:064x}", ("[2001:db8::7]:443",) * 4) for i in range(8))
    assert LINK.qr().count("\n") < Link(RUN, ORGANISER, entries).qr().count("\n")


@pytest.mark.parametrize(
    "url",
    [
        "http://authority.example",
        "http://192.0.2.1:8470",
        "http://127.0.0.1.example",
        "http://user@127.0.0.1",
        "ftp://a.example",
        "https://",
        "https://a.example/" + "x" * 200,
        "https://a b",
        "",
    ],
)
def test_secrets_are_sent_by_https_or_to_this_machine_only(url: str) -> None:
    with pytest.raises(LinkError, match="no address of an authority"):
        Link(RUN, ORGANISER, LINK.entries, authority=url)


@pytest.mark.parametrize("url", ["http://localhost:1", "http://[::1]:8470", "http://127.9.9.9", "https://192.0.2.1/x"])
def test_authorities_that_a_link_can_name(url: str) -> None:
    assert Link.parse(str(Link(RUN, ORGANISER, LINK.entries, authority=url))).authority == url


@pytest.mark.parametrize(
    "text", ["https://example.org/j#{}", " <https://example.org/a/b?c=d#{}>", "minga join https://example.org/j#{}\n"]
)
def test_a_link_at_the_page_of_its_run_is_read_as_the_bare_one(text: str) -> None:
    assert Link.parse(text.format(LINK)) == LINK
    assert Link.parse(LINK.at("https://example.org/j")) == LINK
    assert LINK.at(None) == str(LINK)


@pytest.mark.parametrize("text", ["https://example.org/j", "https://example.org/j#", "https://example.org/j#other"])
def test_an_address_without_a_link_is_none(text: str) -> None:
    with pytest.raises(LinkError, match="is no link"):
        Link.parse(text)


def test_the_qr_code_holds_the_page_where_there_is_room() -> None:
    assert LINK.qr("https://example.org/j") != LINK.qr()
    entries = tuple(EntryPoint(f"{i:064x}", (f"[2001:db8::{i}]:443",) * 8) for i in range(8))
    long = Link(RUN, ORGANISER, entries)
    assert long.qr("https://example.org/j")
