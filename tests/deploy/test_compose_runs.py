"""Each command of the compose stack runs with its environment, host names mapped to loopback, until
it is ready.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from bench.core.embedded_broker import EmbeddedBroker
from carpool.guard import GuardedProcess
from carpool.kafka.embedded import free_port
from carpool.testing.llm_server import LlmServer
from tests.waiting import WAIT_S, wait_until

ROOT = Path(__file__).resolve().parents[2]
SERVICES: dict[str, Any] = yaml.safe_load(
    (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
)["services"]
PASSAGES = "40"

pytestmark = pytest.mark.long


class Stack:
    """What the containers would find: a broker, a folder for /data, an LLM server, under other
    names.
    """

    def __init__(self, folder: Path, broker: str, llm: LlmServer) -> None:
        self.folder = folder
        self.names = {
            "kafka:9092": broker,
            "vllm:8000": f"127.0.0.1:{llm.port}",
            "smollm2-135m-instruct": llm.model,
            "0.0.0.0": "127.0.0.1",
            "/data": str(folder / "data"),
            "/opt/carpool": sys.prefix,
            "/srv": str(ROOT),
        }

    def here(self, text: str) -> str:
        if text.startswith("${"):
            text = text.removeprefix("${").removesuffix("}").partition(":-")[2]
        for there, here in self.names.items():
            text = text.replace(there, here)
        return text

    def start(self, name: str, **changes: str) -> subprocess.Popen[bytes]:
        """Start the service as its container would be, with the environment of the file and nothing
        else but a PATH.
        """
        service = SERVICES[name]
        command = [*service.get("entrypoint", ["carpool"]), *service.get("command", [])]
        environment = {
            variable: self.here(str(value)) for variable, value in service["environment"].items()
        } | changes
        base = {
            "PATH": f"{sys.prefix}/bin:{os.environ['PATH']}",
            "HOME": str(self.folder),
            "HF_HUB_OFFLINE": "1",
            # The embedding model is exported once for all tests.
            "XDG_CACHE_HOME": os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache"),
        }
        with (self.folder / f"{name}.log").open("wb") as log:
            return GuardedProcess[bytes](
                [self.here(word) for word in command],
                cwd=self.folder,
                env=base | environment,
                stdout=log,
                stderr=log,
            )

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(encoding="utf-8", errors="replace")[-4000:]

    def run(self, name: str, **changes: str) -> None:
        assert self.start(name, **changes).wait(timeout=2 * WAIT_S) == 0, self.log(name)


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("compose")
    (folder / "data").mkdir()
    with EmbeddedBroker() as broker, LlmServer() as llm:
        made = Stack(folder, broker.bootstrap, llm)
        made.run("topics")
        made.run("index", PASSAGES=PASSAGES)
        yield made


@pytest.mark.parametrize("name", ["grouper", "searcher", "generator", "indexer"])
def test_a_service_becomes_ready_by_its_own_health_check_and_ends_on_sigterm(
    stack: Stack, name: str
) -> None:
    port = str(free_port())
    form, *probe = SERVICES[name]["healthcheck"]["test"]
    assert form == "CMD"
    probe = [
        word.replace(SERVICES[name]["environment"]["CARPOOL_HTTP_PORT"], port) for word in probe
    ]
    process = stack.start(name, CARPOOL_HTTP_PORT=port)
    try:

        def is_ready() -> bool:
            assert process.poll() is None, stack.log(name)
            command = [sys.executable, *probe[1:]]
            return subprocess.run(command, capture_output=True, check=False).returncode == 0

        wait_until(is_ready, lambda: f"{shlex.join(probe)}\n{stack.log(name)}", every_s=1)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=WAIT_S) == 0, stack.log(name)
    finally:
        process.kill()
        process.wait()


def test_the_index_is_not_built_twice(stack: Stack) -> None:
    manifest = stack.folder / "data/index/manifest.json"
    before = manifest.stat().st_mtime_ns
    stack.run("index", PASSAGES=PASSAGES)
    assert manifest.stat().st_mtime_ns == before
