"""The services as processes, for benchmarks and crash tests: started, waited for, measured, killed,
started again.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from prometheus_client.parser import text_string_to_metric_families

from carpool.errors import CarpoolError
from carpool.kafka.embedded import free_port

SERVICES = ("grouper", "searcher", "generator")
LOOPBACK = "127.0.0.1"
STAND_IN_MODEL = "carpool-llm-stand-in"


class ServiceProcess:
    """One process of Carpool with HTTP pages of its own. Its log is appended to `log_file` over all
    its lives.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        environ: Mapping[str, str],
        port: int,
        log_file: Path,
        ready_page: str,
    ) -> None:
        """`command` is run as it is; `ready_page` answers 200 once it does its work."""
        self.command = tuple(command)
        self.port = port
        self.log_file = log_file
        self._environ = dict(environ)
        self._ready_page = ready_page
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The process id of the running life."""
        assert self._process is not None, "not started"
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether the process lives."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Starts it; returns at once."""
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                self.command,
                env=self._environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def wait_ready(self, timeout_s: float = 60.0) -> None:
        """Waits until it is ready. Raises `CarpoolError` with the end of its log when it ends or
        takes too long.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            if self.page(self._ready_page)[0] == 200:
                return
            if not self.is_running or time.monotonic() > deadline:
                tail = (
                    self.log_file.read_text(errors="replace")[-3_000:]
                    if self.log_file.exists()
                    else ""
                )
                what = "is not ready" if self.is_running else "has ended"
                raise CarpoolError(
                    f"{' '.join(self.command[-2:])} {what}; "
                    f"{self.page(self._ready_page)[1]}\n{tail}"
                )
            time.sleep(0.05)

    def page(self, path: str) -> tuple[int, str]:
        """Returns (status, text) of one of its HTTP pages; status 0 when nothing answers."""
        try:
            with urllib.request.urlopen(f"http://{LOOPBACK}:{self.port}{path}", timeout=5) as reply:
                return reply.status, reply.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode(errors="replace")
        except OSError:
            return 0, "nothing answers"

    def metric(self, name: str, **labels: str) -> float:
        """Returns the sum of a metric's samples that carry these labels; 0 when there are none."""
        status, text = self.page("/metrics")
        if status != 200:
            return 0.0
        return sum(
            sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )

    def samples(self) -> dict[str, float]:
        """Returns every sample of /metrics under its name with labels, as they stand on the page;
        none when nothing answers.
        """
        status, text = self.page("/metrics")
        if status != 200:
            return {}
        lines = (
            line.rpartition(" ") for line in text.splitlines() if line and not line.startswith("#")
        )
        return {name: float(value) for name, _, value in lines}

    def kill(self) -> None:
        """Ends it with SIGKILL, also while it is paused, and waits."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def pause(self) -> None:
        """Stops it in the middle of what it does, as a stall does."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Lets it go on."""
        os.kill(self.pid, signal.SIGCONT)

    def wait(self, timeout_s: float) -> int:
        """Waits for its end and returns its exit status. Raises `subprocess.TimeoutExpired`."""
        assert self._process is not None, "not started"
        return self._process.wait(timeout_s)

    def stop(self, timeout_s: float = 40.0) -> int:
        """Ends it with SIGTERM, by SIGKILL if that takes too long; returns its exit status."""
        if self._process is None:
            return 0
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            self._process.send_signal(signal.SIGCONT)  # one that is paused would not hear of it
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()


def member_names(service: str, members: int) -> list[str]:
    """Returns the instance ids of a service's processes.

    A single process has the name of the service.
    """
    return (
        [service] if members == 1 else [f"{service}-{number}" for number in range(1, members + 1)]
    )


class Stack:
    """Grouper, searcher, generator and, if asked for, the LLM stand-in, on a broker that is there.
    A context manager.
    """

    def __init__(
        self,
        *,
        bootstrap: str,
        index_dir: Path,
        work_dir: Path,
        services: Sequence[str] = SERVICES,
        members: int = 1,
        settings: Mapping[str, str] | None = None,
        llm_url: str | None = None,
    ) -> None:
        """`settings` are further environment variables (CARPOOL_SECTION_NAME). `members`: processes
        of each service.

        Without `llm_url` the stand-in is run, unless the settings want no LLM.
        """
        work_dir.mkdir(parents=True, exist_ok=True)
        self.bootstrap = bootstrap
        self.processes: dict[str, ServiceProcess] = {}
        base = {
            name: value for name, value in os.environ.items() if not name.startswith("CARPOOL_")
        }
        base |= {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        needs_llm = "generator" in services and (settings or {}).get("CARPOOL_LLM_ENGINE") != "none"
        if needs_llm and llm_url is None:
            port = free_port()
            command = [sys.executable, "-m", "carpool.testing.llm_server", "--port", str(port)]
            self.processes["llm"] = ServiceProcess(
                command,
                environ=base,
                port=port,
                log_file=work_dir / "llm.log",
                ready_page="/health",
            )
            llm_url = f"http://{LOOPBACK}:{port}/v1"
            base["CARPOOL_LLM_MODEL"] = STAND_IN_MODEL
        for name, service in {
            name: each for each in services for name in member_names(each, members)
        }.items():
            port = free_port()
            environ = base | {
                "CARPOOL_KAFKA_BOOTSTRAP": bootstrap,
                "CARPOOL_KAFKA_INSTANCE_ID": name,
                "CARPOOL_INDEX_DIR": str(index_dir),
                "CARPOOL_HTTP_PORT": str(port),
                **({"CARPOOL_LLM_BASE_URL": llm_url} if llm_url else {}),
                **(settings or {}),
            }
            self.processes[name] = ServiceProcess(
                [sys.executable, "-m", "carpool", service],
                environ=environ,
                port=port,
                log_file=work_dir / f"{name}.log",
                # With several, one may have nothing to be ready for: a topic with one partition has
                # one reader.
                ready_page="/readyz" if members == 1 else "/healthz",
            )

    def __getitem__(self, service: str) -> ServiceProcess:
        """Returns one process by its name: that of its service, or with `members`
        SERVICE-NUMBER.
        """
        return self.processes[service]

    def start(self, timeout_s: float = 90.0) -> None:
        """Starts all and waits until all are ready."""
        for process in self.processes.values():
            process.start()
        for process in self.processes.values():
            process.wait_ready(timeout_s)

    def stop(self) -> None:
        """Ends all, those that feed others first."""
        for name in sorted(self.processes, key=lambda name: name == "llm"):
            self.processes[name].stop()

    def __enter__(self) -> Stack:
        """Starts all."""
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Ends all."""
        self.stop()
