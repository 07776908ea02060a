"""The services as processes: started, waited for, paused, killed, measured, started again."""

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
from types import MappingProxyType
from typing import Self

from prometheus_client.parser import text_string_to_metric_families

from carpool.errors import CarpoolError, ConfigError
from carpool.guard import GuardedProcess
from carpool.kafka.embedded import free_port
from carpool.settings import environment_name
from carpool.testing.llm_text import NAME as STAND_IN_MODEL

SERVICES = ("grouper", "searcher", "generator")
LOOPBACK = "127.0.0.1"
LOG_TAIL_CHARS = 3_000
PAGE_TIMEOUT_S = 10.0
STAND_IN = "carpool.testing.llm_server"
READY_TIMEOUT_S = 600.0
"""Generous: a slow, busy machine loads a model in minutes."""


class ServiceProcess:
    """A process that may be started again. Its log is appended to `log_file`.

    A context manager that waits until it is ready, and stops it.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        environ: Mapping[str, str],
        log_file: Path,
        port: int = 0,
        ready_page: str = "/health",
    ) -> None:
        """`ready_page`: the HTTP path that answers 200 when the process is ready.

        `port` is that of its pages; 0: it has none.
        """
        self.command = tuple(command)
        """Of the next start."""
        self.port = port
        self.log_file = log_file
        self._environ = dict(environ)
        self._ready_page = ready_page
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The process id since the last start."""
        assert self._process is not None, "not started"
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether the process exists, paused or not."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Does not wait until it is ready."""
        with self.log_file.open("ab") as log:
            self._process = GuardedProcess[bytes](
                self.command, env=self._environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def is_up(self) -> bool:
        """Whether it answers that it is ready; without a port, it is."""
        return not self.port or self.page(self._ready_page)[0] == 200

    def wait_ready(self) -> None:
        """Raises `CarpoolError` with the end of the log when it ends or is not ready in time."""
        deadline = time.monotonic() + READY_TIMEOUT_S
        while not self.is_up():
            if not self.is_running or time.monotonic() > deadline:
                what = "is not ready" if self.is_running else "has ended"
                _, text = self.page(self._ready_page)
                raise CarpoolError(
                    f"{' '.join(self.command[-2:])} {what}; {text}\n{self.log_tail()}"
                )
            time.sleep(0.05)

    def log_tail(self) -> str:
        """Returns the end of the log."""
        return self.log_file.read_text(errors="replace")[-LOG_TAIL_CHARS:]

    def page(self, path: str, body: bytes | None = None) -> tuple[int, str]:
        """Returns (status, text) of a page; status 0: nothing answers. `body` makes it a POST."""
        url = f"http://{LOOPBACK}:{self.port}{path}"
        try:
            with urllib.request.urlopen(url, body, timeout=PAGE_TIMEOUT_S) as reply:
                return reply.status, reply.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode(errors="replace")
        except OSError:
            return 0, "nothing answers"

    def metric(self, name: str, **labels: str) -> float:
        """Returns the sum of a metric's samples that have these labels; 0 when there are none."""
        status, text = self.page("/metrics")
        if status != 200:
            return 0.0
        # Only the lines of this metric: the parser takes tens of milliseconds for all lines.
        lines = "".join(line for line in text.splitlines(keepends=True) if line.startswith(name))
        return sum(
            sample.value
            for family in text_string_to_metric_families(lines)
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )

    def kill(self) -> None:
        """Ends the process with SIGKILL, also while it is paused, and waits for its end."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def pause(self) -> None:
        """Stops the process with SIGSTOP, as a stall does."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def stop(self, timeout_s: float = 40.0) -> int:
        """Ends the process with SIGTERM, later with SIGKILL; returns its exit status."""
        if self._process is None:
            return 0
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            self._process.send_signal(signal.SIGCONT)  # a paused process would not receive SIGTERM
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def __enter__(self) -> Self:
        try:
            self.start()
            self.wait_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def llm_url(port: int) -> str:
    """Returns the base URL of an LLM server on loopback."""
    return f"http://{LOOPBACK}:{port}/v1"


def member_names(service: str, members: int) -> list[str]:
    """Returns the names of a service's processes: their instance ids too."""
    return [service] if members == 1 else [f"{service}-{n}" for n in range(1, members + 1)]


def clean_environment() -> dict[str, str]:
    """Returns the environment of this process without settings of Carpool; OpenMP: one thread."""
    base = {name: value for name, value in os.environ.items() if not name.startswith("CARPOOL_")}
    return base | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}


def begin_python(arguments: Sequence[str], folder: Path) -> subprocess.Popen[bytes]:
    """Starts Python with the packages of this process in `folder`, and without its settings.

    What it prints is appended to `log.txt` there.
    """
    environ = {**clean_environment(), "PYTHONPATH": os.pathsep.join(sys.path)}
    with (folder / "log.txt").open("ab") as log:
        command = [sys.executable, *arguments]
        return subprocess.Popen(command, cwd=folder, stdout=log, stderr=log, env=environ)


def parse_settings(given: Sequence[str]) -> dict[str, str]:
    """Returns each SECTION.NAME=VALUE as an environment variable. Raises `ConfigError`."""
    variables = {}
    for text in given:
        name, equals, value = text.partition("=")
        section, dot, setting = name.partition(".")
        if not (equals and dot and section and setting):
            raise ConfigError(
                f"--set {text}: write SECTION.NAME=VALUE, for example grouper.policy=greedy"
            )
        variables[environment_name(section, setting)] = value
    return variables


class Stack:
    """Grouper, searcher, generator and LLM stand-ins as processes on a broker that exists."""

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
        llm_options: Sequence[str] = (),
        llm_servers: int = 1,
        kv_folder: Path | None = None,
        python_path: Path | None = None,
        commands: Mapping[str, Sequence[str]] = MappingProxyType({}),
    ) -> None:
        """`settings`: further environment variables. `members`: processes of each service.

        The stand-ins run when `services` has the generator, there is no `llm_url`, and the settings
        do not turn the LLM off: `llm_servers` with `llm_options`. In a `kv_folder`, of a short
        path, they say what they have cached. `python_path`: where the packages of the services are;
        None: as in this process. `commands`: of services not started by `carpool SERVICE`.
        """
        work_dir.mkdir(parents=True, exist_ok=True)
        self.bootstrap = bootstrap
        self.processes: dict[str, ServiceProcess] = {}
        self.llm_names: tuple[str, ...] = ()
        self._work_dir = work_dir
        given = dict(settings or {})
        shared = {"CARPOOL_KAFKA_BOOTSTRAP": bootstrap, "CARPOOL_INDEX_DIR": str(index_dir)}
        if llm_url is not None:
            shared["CARPOOL_LLM_BASE_URL"] = llm_url
        elif "generator" in services and given.get("CARPOOL_LLM_ENGINE") != "none":
            names = member_names("llm", llm_servers)
            shared |= self._add_stand_ins(names, llm_options, kv_folder)
        if python_path is not None:
            # Python would look for packages in the working folder first.
            shared |= {"PYTHONPATH": str(python_path), "PYTHONSAFEPATH": "1"}
        for service in services:
            command = commands.get(service, (sys.executable, "-m", "carpool", service))
            # Of several members, one may have no partition to become ready for.
            ready_page = "/readyz" if members == 1 else "/healthz"
            for name in member_names(service, members):
                self._add(name, command, ready_page, {**shared, **given}, free_port())

    def _add_stand_ins(
        self, names: Sequence[str], options: Sequence[str], kv_folder: Path | None
    ) -> dict[str, str]:
        """Adds the stand-ins; returns the services' settings that name them."""
        self.llm_names = tuple(names)
        urls, kv_events = list[str](), list[str]()
        for name in names:
            port = free_port()
            urls.append(llm_url(port))
            own = ["--port", str(port), *options]
            if kv_folder:
                kv_events.append(f"ipc://{kv_folder}/{name}")
                own += ["--kv-events", kv_events[-1]]
            self._add(name, [sys.executable, "-m", STAND_IN, *own], "/health", {}, port)
        return {
            "CARPOOL_LLM_BASE_URL": ",".join(urls),
            "CARPOOL_LLM_MODEL": STAND_IN_MODEL,
            "CARPOOL_LLM_KV_EVENTS": ",".join(kv_events),
        }

    def _add(
        self, name: str, command: Sequence[str], page: str, environ: Mapping[str, str], port: int
    ) -> None:
        own = {"CARPOOL_KAFKA_INSTANCE_ID": name, "CARPOOL_HTTP_PORT": str(port)}
        self.processes[name] = ServiceProcess(
            command,
            environ={**clean_environment(), **own, **environ},
            log_file=self._work_dir / f"{name}.log",
            port=port,
            ready_page=page,
        )

    def __getitem__(self, name: str) -> ServiceProcess:
        """Returns one process: SERVICE, or SERVICE-NUMBER where there are several members."""
        return self.processes[name]

    def start(self) -> None:
        """Starts all processes and waits until all are ready."""
        for process in self.processes.values():
            process.start()
        for process in self.processes.values():
            process.wait_ready()

    def services(self) -> list[ServiceProcess]:
        """Returns all processes but the LLM servers."""
        return [self[name] for name in self.instances()]

    def instances(self, service: str = "") -> list[str]:
        """Returns the names of all processes but the LLM servers, or of those of a service."""
        return [
            name
            for name in self.processes
            if name not in self.llm_names and name.startswith(service)
        ]

    def stop_services(self) -> None:
        """Ends all processes but the LLM servers."""
        for process in self.services():
            process.stop()

    def stop(self) -> None:
        """Ends all processes, the LLM servers last."""
        self.stop_services()
        for name in self.llm_names:
            self.processes[name].stop()

    def __enter__(self) -> Stack:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
