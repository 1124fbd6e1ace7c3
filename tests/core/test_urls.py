"""Socket addresses as options say them."""

from __future__ import annotations

import socket
from types import SimpleNamespace

import pytest

from minga.core import urls
from minga.core.errors import ConfigurationError
from minga.core.urls import is_source_url, parse_listen, reachable_hosts


def test_where_a_server_listens() -> None:
    assert parse_listen("127.0.0.1:0", "") == ("127.0.0.1", 0)
    assert parse_listen("[::1]:8470", "") == ("::1", 8470)
    assert parse_listen(":8470", "") == ("127.0.0.1", 8470)
    for wrong in ("", "8470", "a:b", "::1:8470", "127.0.0.1:70000"):
        with pytest.raises(ConfigurationError, match=r"such as 127.0.0.1:8470"):
            parse_listen(wrong, "127.0.0.1:8470")


def test_others_reach_a_server_on_all_interfaces_by_the_addresses_of_the_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    v4 = [SimpleNamespace(family=socket.AF_INET, address=each) for each in ("127.0.0.1", "10.0.0.5", "192.168.1.7")]
    v6 = [SimpleNamespace(family=socket.AF_INET6, address=each) for each in ("::1", "fe80::1%eth0", "2001:db8::7")]
    monkeypatch.setattr(urls.psutil, "net_if_addrs", lambda: {"lo": v4[:1] + v6[:1], "eth0": v4[1:] + v6[1:]})
    monkeypatch.setattr(urls, "_outward_address", lambda family: "192.168.1.7")
    assert reachable_hosts("0.0.0.0") == ["192.168.1.7", "10.0.0.5"]
    assert reachable_hosts("::") == ["[2001:db8::7]"]
    assert reachable_hosts("10.0.0.5") == ["10.0.0.5"]
    assert reachable_hosts("::1") == ["[::1]"]
    monkeypatch.setattr(urls.psutil, "net_if_addrs", lambda: {"lo": v4[:1] + v6[:1]})
    assert (reachable_hosts("0.0.0.0"), reachable_hosts("::")) == (["127.0.0.1"], ["[::1]"])


@pytest.mark.parametrize(
    "url",
    [
        "https://example.org/minga-1.0-py3-none-any.whl#sha256=ab",
        "git+https://example.org/minga@v1.0",
        "https://a.b:8/c",
    ],
)
def test_where_pip_may_get_minga(url: str) -> None:
    assert is_source_url(url)


@pytest.mark.parametrize(
    "url",
    ["http://example.org/m.whl", "minga", "", "https://", "git+ssh://example.org/m", "https://a/'; rm -rf ~; '"]
    + [f"https://a/{character}" for character in "'\"`$ \n\\(){}<>|;!^*"]
    + ["https://a/" + "x" * 200, "https://user@a/b", "git+git+https://a/b"],
)
def test_nothing_that_a_shell_would_read_is_a_source(url: str) -> None:
    """It stands in commands that people copy into their shells."""
    assert not is_source_url(url)
