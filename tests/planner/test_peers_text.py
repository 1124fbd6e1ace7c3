"""Peers in one line of text: what is understood, and how mistakes are shown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minga.core.errors import ConfigurationError
from minga.planner.peer_text import MAX_CHARACTERS, PeerClass, parse_peers


def test_what_is_understood() -> None:
    text = (
        "20x(t4, up=50Mbit, down=200Mbit); 4 x (A100, 1Gbit, latency=5ms) ;(aux,1Gbit);2*(nat,8MB/s,samples_per_s=3.5)"
    )
    homes, fast, auxiliary, clients = parse_peers(text)
    assert homes == PeerClass("20x(t4, up=50Mbit, down=200Mbit)", 1, 20, 6.25e6, 25e6, "trainer", "t4")
    assert (fast.count, fast.device, fast.upload, fast.download, fast.latency_s) == (4, "a100", 125e6, 125e6, 0.005)
    assert (auxiliary.count, auxiliary.role, auxiliary.device) == (1, "auxiliary", None)
    assert (clients.role, clients.upload, clients.samples_per_s, clients.count) == ("client", 8e6, 3.5, 2)
    (own,) = parse_peers("(t4, up=1Mbit, micro_batch=8, memory=8GiB);")
    assert (own.download, own.micro_batch, own.memory_bytes) == (125e3, 8, 8 << 30)
    assert parse_peers("(samples_per_s=1000000000, 1Gbit)")[0].samples_per_s == 1e9


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "nobody is described; write for example '20x(t4"),
        (" ; ", "nobody is described"),
        ("t4", "at character 1, 't4': a class of peers looks like 4x(t4, 100Mbit), and a ; separates two"),
        ("(t4, 1Gbit) 3x(v100, 1Gbit)", "at character 1, '(t4, 1Gbit) 3x(v100, 1Gbit)': a class of peers looks like"),
        ("3x(t4)", "at character 1, '3x(t4)': the upload rate is missing"),
        ("(v100, 1Gbit);  3x(t4, down=1Gbit)", "at character 17, '3x(t4, down=1Gbit)': the upload rate is missing"),
        ("2x(t4, 1Gbit, upp=3)", "at character 15, 'upp=3': 'upp' cannot be set; there may be: a device, a rate"),
        ("2x(t4, up=fast)", "at character 8, 'up=fast': the rate = 'fast' is not a rate: write bits or bytes"),
        ("2x(t4, 100)", "at character 8, '100': neither a device nor a rate with its unit"),
        ("2x(t4, 1Gbit, v100)", "at character 15, 'v100': the device was given before"),
        ("2x(t4, 1Gbit, up=1Gbit)", "give one rate for both directions, or up= and down="),
        ("2x(t4, 1Gbit, aux, client)", "at character 20, 'client': the role was given before"),
        ("(aux, t4, 1Gbit)", "an auxiliary computes no gradients, so it has no device"),
        ("(1Gbit)", "the device is missing: add one such as t4, or samples_per_s=, or aux"),
        (
            "(t4, 1Gbit, latency=5)",
            "at character 13, 'latency=5': a latency is written like 20ms or 0.1s, at most 10 s",
        ),
        ("(t4, 1Gbit, latency=11s)", "at most 10 s"),
        ("(t4, 0Mbit)", "at character 6, '0Mbit': rate = '0Mbit' is out of range: it must be more than 0"),
        ("(9000Tbit, t4)", "at character 2, '9000Tbit': rate = '9000Tbit' is out of range"),
        ("(t4, 1Gbit, memory=9999TB)", "at most 1024TiB"),
        ("(t4, 1Gbit, memory=16)", "a memory is written like 16GiB or 900MB"),
        ("(t4, 1Gbit, micro_batch=0)", "micro_batch is a whole number from 1 to 1048576"),
        ("(t4, 1Gbit, samples_per_s=0)", "samples_per_s is a number such as 12.5, above 0"),
        ("(t4, 1Gbit,, aux)", "nothing stands between two commas"),
        ("0x(t4, 1Gbit)", "there may be 1 to 1000 peers"),
        ("600x(t4, 1Gbit); 600x(v100, 1Gbit)", "1200 peers in all; there may be at most 1000"),
        ("(t4, 1Gbit);" * 101, "101 classes of peers; there may be at most 100"),
        ("x" * (MAX_CHARACTERS + 1), f"more than {MAX_CHARACTERS} characters"),
    ],
)
def test_mistakes_are_shown_where_they_are(text: str, said: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        parse_peers(text)
    assert said in str(refused.value)
    assert str(refused.value).startswith("--peers: ")


@given(st.text(alphabet="0123456789x*();,= tauxupdownMGbit/s.\t\n", max_size=60))
def test_any_text_is_understood_or_refused(text: str) -> None:
    try:
        found = parse_peers(text)
    except ConfigurationError:
        return
    assert all(each.count >= 1 and each.upload > 0 and each.download > 0 for each in found)
