"""A real vLLM with a small model on loopback, for tests: `CARPOOL_TEST_MODEL` is its folder.

It needs a minute to start, about 4 GB of memory and all cores: start one for each test session.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from carpool.kafka.embedded import free_port
from carpool.vllm import VllmSettings, kv_events_in, model_name, vllm_command, vllm_environment
from cli.http import probe_vllm
from cli.supervise import Child, ChildSpec
from tests.waiting import wait_until

DEFAULT_MODEL = Path(".carpool/models/smollm2-135m-instruct")
START_TIMEOUT_S = 900.0
STOP_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class VllmServer:
    """Where it is. `kv_events`: for `llm.kv_events`."""

    url: str
    model: str
    kv_events: str


@contextmanager
def running_vllm(log_file: Path) -> Iterator[VllmServer]:
    """Starts a server, and ends it. Fails with the end of its log."""
    folder = Path(os.environ.get("CARPOOL_TEST_MODEL") or DEFAULT_MODEL)
    settings, port = VllmSettings(model_dir=str(folder.resolve())), free_port()
    address = f"127.0.0.1:{port}"
    with tempfile.TemporaryDirectory(prefix="carpool-") as sockets:
        kv_events = kv_events_in(Path(sockets))
        spec = ChildSpec(
            name="vllm",
            command=vllm_command(settings, port, kv_events=kv_events),
            environ=vllm_environment(os.environ),
            log_file=log_file,
            probe=partial(probe_vllm, address),
        )
        child = Child(spec)
        try:
            started = partial(wait_until, timeout_s=START_TIMEOUT_S, every_s=0.5)
            started(lambda: child.has_ended() or not spec.probe(), child.log_tail)
            assert not child.has_ended(), child.log_tail()
            yield VllmServer(f"http://{address}/v1", model_name(settings), kv_events or "")
        finally:
            child.ask_to_end()
            with suppress(AssertionError):
                wait_until(child.has_ended, timeout_s=STOP_TIMEOUT_S)
            child.kill()
