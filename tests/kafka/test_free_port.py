"""Ports that nobody listens on yet are handed out once."""

from __future__ import annotations

import pytest

from carpool.errors import ConfigError
from carpool.kafka import embedded


def test_a_port_is_handed_out_once_before_anybody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    port = embedded.free_port()
    monkeypatch.setattr(embedded, "_PORTS", range(port, port + 1))
    with pytest.raises(ConfigError, match="no port"):
        embedded.free_port()
