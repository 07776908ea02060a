"""A real vLLM server, which tests of the generator share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from carpool.testing.vllm_server import VllmServer


@pytest.fixture(scope="session")
def vllm_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    with VllmServer(tmp_path_factory.mktemp("vllm") / "vllm.log") as server:
        yield server
