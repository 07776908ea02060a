"""A gateway process in front of a broker, and the SDK of its users."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import openai
import pytest

from tests.producers.responder import Responder
from tests.waiting import WAIT_S


@pytest.fixture(scope="module")
def responder(embedded_bootstrap: str) -> Iterator[Responder]:
    made = Responder(embedded_bootstrap)
    yield made
    made.close()


@contextmanager
def started(
    bootstrap: str, folder: Path, *settings: str
) -> Iterator[tuple[subprocess.Popen[str], str, str]]:
    """A running gateway, its base URL, and its key, if it is of this machine.

    It ends with 0 at a SIGTERM.
    """
    command = [sys.executable, "-m", "carpool", "gateway", "--port", "0", "-b", bootstrap]
    for setting in settings:
        command += ["--set", setting]
    environ = os.environ | {"PYTHONPATH": str(Path.cwd())}
    with (
        (folder / "log").open("w") as log,
        subprocess.Popen(
            command, cwd=folder, env=environ, stdout=subprocess.PIPE, stderr=log, text=True
        ) as process,
    ):
        assert process.stdout is not None
        line = next((each for each in process.stdout if "OPENAI_BASE_URL" in each), "")
        found = re.search(r"OPENAI_BASE_URL=(\S+)(?: OPENAI_API_KEY=(\S+))?", line)
        assert found is not None, (folder / "log").read_text()
        yield process, found[1], found[2] or ""
        if process.poll() != -signal.SIGKILL:
            process.terminate()
            assert process.wait(WAIT_S) == 0, (folder / "log").read_text()


@pytest.fixture(scope="module")
def address(
    request: pytest.FixtureRequest, responder: Responder, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, str]]:
    """The base URL of a running gateway, and its key; `SETTINGS` of the module are its own."""
    settings = getattr(request.module, "SETTINGS", ())
    folder = tmp_path_factory.mktemp("gateway")
    with started(responder.bootstrap, folder, *settings) as (_, base_url, key):
        yield base_url, key


@pytest.fixture
def sdk(address: tuple[str, str]) -> Iterator[openai.OpenAI]:
    base_url, key = address
    with openai.OpenAI(
        base_url=base_url, api_key=key, max_retries=0, _strict_response_validation=True
    ) as client:
        yield client
