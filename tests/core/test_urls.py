"""Socket addresses as options say them."""

from __future__ import annotations

import pytest

from minga.core.errors import ConfigurationError
from minga.core.urls import parse_listen


def test_where_a_server_listens() -> None:
    assert parse_listen("127.0.0.1:0", "") == ("127.0.0.1", 0)
    assert parse_listen("[::1]:8470", "") == ("::1", 8470)
    assert parse_listen(":8470", "") == ("127.0.0.1", 8470)
    for wrong in ("", "8470", "a:b", "::1:8470", "127.0.0.1:70000"):
        with pytest.raises(ConfigurationError, match=r"--listen.*such as 127.0.0.1:8470"):
            parse_listen(wrong, "127.0.0.1:8470")
