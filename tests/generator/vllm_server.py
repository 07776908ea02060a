"""A real vLLM with a small model on loopback, for tests: `CARPOOL_TEST_MODEL` is its folder.

It needs a minute to start, about 4 GB of memory and all cores: start one for each test session.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

from carpool.errors import ConfigError
from carpool.kafka.embedded import free_port
from carpool.vllm import (
    VllmSettings,
    kv_events_in,
    model_name,
    vllm_command,
    vllm_environment,
)

DEFAULT_MODEL = Path(".carpool/models/smollm2-135m-instruct")
HOST = "127.0.0.1"
START_TIMEOUT_S = 900.0
STOP_TIMEOUT_S = 30.0


class VllmServer:
    """One server. A context manager: ready on entry, ended on exit."""

    def __init__(self, log_file: Path) -> None:
        """Chooses a port. Raises `ConfigError` without vLLM or a model."""
        folder = Path(os.environ.get("CARPOOL_TEST_MODEL") or DEFAULT_MODEL)
        if importlib.util.find_spec("vllm") is None or not (folder / "config.json").is_file():
            raise ConfigError(
                "no vLLM to start: `make setup-vllm` installs it and makes the model in "
                f"{DEFAULT_MODEL}; CARPOOL_TEST_MODEL names another model folder"
            )
        self._settings = VllmSettings(model_dir=str(folder.resolve()))
        self._log_file = log_file
        self._process: subprocess.Popen[bytes] | None = None
        self.model = model_name(self._settings)
        self.port = free_port()
        self._folder = tempfile.TemporaryDirectory(prefix="carpool-")
        self.kv_events = kv_events_in(Path(self._folder.name)) or ""
        """For `llm.kv_events`."""

    @property
    def url(self) -> str:
        """The base URL of its API."""
        return f"http://{HOST}:{self.port}/v1"

    def __enter__(self) -> VllmServer:
        """Starts it and waits. Raises `ConfigError` with the end of its log."""
        with self._log_file.open("wb") as log:
            self._process = subprocess.Popen(
                vllm_command(self._settings, self.port, kv_events=self.kv_events or None),
                stdout=log,
                stderr=subprocess.STDOUT,
                env=vllm_environment(os.environ),
                start_new_session=True,
            )
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._is_healthy():
            has_ended = self._process.poll() is not None
            if has_ended or time.monotonic() > deadline:
                self.stop()
                tail = self._log_file.read_text(errors="replace")[-3_000:]
                what = "ended" if has_ended else f"did not answer within {START_TIMEOUT_S:.0f} s"
                raise ConfigError(f"vLLM {what}; the end of its log:\n{tail}")
            time.sleep(0.5)
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._folder.cleanup()

    def stop(self) -> None:
        """Ends the server and the engine process that it started."""
        process = self._process
        if process is None:
            return
        self._process = None
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(STOP_TIMEOUT_S)
        with contextlib.suppress(ProcessLookupError):
            # The server leads its session, and the engine is the last process of it.
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def _is_healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://{HOST}:{self.port}/health", timeout=5) as response:
                return bool(response.status == 200)
        except (urllib.error.URLError, OSError):
            return False
