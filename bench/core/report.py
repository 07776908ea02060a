"""The report of a benchmark: one JSON with everything that a figure depends on."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.text import Text

from bench.core.machine import DataFile, Machine, Revision, program, this_machine, this_revision
from carpool.errors import ConfigError
from carpool.terminal import TerminalConsole, harmless_json, print_plain

TABLE_WIDTH = 170
"""The width of tables where there is no terminal."""


class IndexFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The index that was searched."""

    index_version: str
    row_count: int
    dimension: int
    nlist: int
    nprobe_default: int
    segment_bytes: int
    embedding_model: str


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """A benchmark and where it ran.

    `settings`: of the benchmark; those of the services are under `services`. `results`: figures of
    one run, or spreads over several runs. `index` is None where no index was searched; `broker` is
    empty where no broker was used.
    """

    benchmark: str
    command: list[str]
    started: str
    duration_s: float
    machine: Machine
    revision: Revision | None
    settings: Any
    promises: dict[str, bool]
    results: Any
    data: tuple[DataFile, ...] = ()
    index: IndexFacts | None = None
    broker: str = ""

    @property
    def holds(self) -> bool:
        """Whether every promise was kept."""
        return all(self.promises.values())


class RunStart(msgspec.Struct, frozen=True, kw_only=True):
    """When a run began, and the machine with its load at that time."""

    started_s: float
    machine: Machine

    @classmethod
    def now(cls) -> RunStart:
        """Returns the start of a run that begins now."""
        return cls(started_s=time.time(), machine=this_machine())

    def report(
        self,
        benchmark: str,
        *,
        promises: dict[str, bool],
        **facts: Any,
    ) -> Report:
        """Returns the report of the run, which ends now. `facts`: other fields of `Report`."""
        return Report(
            benchmark=benchmark,
            command=program(),
            started=datetime.fromtimestamp(self.started_s, UTC).isoformat(timespec="seconds"),
            duration_s=round(time.time() - self.started_s, 3),
            machine=self.machine,
            revision=this_revision(),
            promises=promises,
            **facts,
        )


def write_report(report: msgspec.Struct, path: Path) -> None:
    """Writes `report` as JSON; `-` is standard output.

    Raises `ConfigError` where the file cannot be written.
    """
    content = msgspec.json.format(msgspec.json.encode(report, enc_hook=str), indent=2)
    if str(path) == "-":
        print_plain(harmless_json(content.decode()))
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content + b"\n")
    except OSError as error:
        raise ConfigError(
            f"cannot write {path}: {error.strerror}; name another file with --json"
        ) from error


def finish(report: Report, json_file: Path | None, show: Callable[[Console], None]) -> bool:
    """Writes the JSON, prints tables and promises, and returns whether every promise was kept.

    `show` prints the tables. Tables go to standard error where the JSON goes to standard output.
    """
    if json_file is not None:
        write_report(report, json_file)
    uses_stderr = str(json_file) == "-"
    console = TerminalConsole(stderr=uses_stderr)
    if not console.is_terminal:
        console = TerminalConsole(stderr=uses_stderr, width=TABLE_WIDTH)
    show(console)
    for promise, is_kept in report.promises.items():
        console.print(Text("holds ", "green") if is_kept else Text("BROKEN", "red"), promise)
    return report.holds
