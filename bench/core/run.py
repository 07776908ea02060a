"""A run of a benchmark and its report: tables, promises, one JSON with all that it depends on."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.text import Text

from bench.core.command import reported
from bench.core.kafka import require_kafka, started_broker
from bench.core.machine import DataFile, Machine, Revision, this_machine, this_revision
from bench.core.options import ServiceOptions
from bench.core.stack import parse_settings
from bench.core.tables import table_of
from carpool.errors import ConfigError
from carpool.terminal import TerminalConsole, harmless_json, print_plain

TABLE_WIDTH = 170
"""The width of tables where there is no terminal."""

Shown = Mapping[str, Any] | Callable[[Console], None]
"""The results of a table, by column, or what prints tables."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """A benchmark and where it ran.

    `settings`: of the benchmark; those of the services are under `services`. `index`: the facts of
    the index that was searched. `broker` is empty where no broker was used.
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
    index: Any = None
    broker: str = ""


class BenchRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run that has begun. `machine`: with its load at that time."""

    benchmark: str
    options: Any
    started_s: float
    machine: Machine

    def note(self, text: str) -> None:
        """Prints a line of progress to standard error."""
        TerminalConsole(stderr=True).print(text, soft_wrap=True)

    def finish(
        self, shown: Shown, *, promises: dict[str, bool], results: Any, **facts: Any
    ) -> bool:
        """Writes the JSON, prints tables and promises; returns whether every promise was kept.

        `facts`: further fields of the report, or instead of the usual ones. Tables go to standard
        error where the JSON goes to standard output. Raises `ConfigError` where the JSON cannot be
        written.
        """
        usual: dict[str, Any] = {
            "settings": reported(self.options),
            "command": ["carpool", *sys.argv[1:]],
            "started": datetime.fromtimestamp(self.started_s, UTC).isoformat(timespec="seconds"),
            "duration_s": round(time.time() - self.started_s, 3),
            "machine": self.machine,
            "revision": this_revision(),
        }
        report = Report(
            benchmark=self.benchmark, promises=promises, results=results, **(usual | facts)
        )
        json_file = self.options.json_file
        if json_file is not None:
            write_report(report, json_file)
        uses_stderr = str(json_file) == "-"
        console = TerminalConsole(stderr=uses_stderr)
        if not console.is_terminal:
            console = TerminalConsole(stderr=uses_stderr, width=TABLE_WIDTH)
        if callable(shown):
            shown(console)
        else:
            console.print(table_of(self.benchmark, shown))
        for promise, is_kept in promises.items():
            console.print(Text("holds ", "green") if is_kept else Text("BROKEN", "red"), promise)
        return all(promises.values())


class ServicesRun(BenchRun, frozen=True, kw_only=True):
    """A run of services. `folder`: of logs; `settings`: environment variables of the services.

    `broker`: what the report calls the brokers.
    """

    folder: Path
    settings: dict[str, str]
    broker: str

    def finish(
        self, shown: Shown, *, promises: dict[str, bool], results: Any, **facts: Any
    ) -> bool:
        """See `BenchRun.finish`."""
        settings = reported(self.options) | {"services": self.settings}
        usual = {"settings": settings, "broker": self.broker}
        return super().finish(shown, promises=promises, results=results, **(usual | facts))


def begin(benchmark: str, options: Any) -> BenchRun:
    """Begins a run. `options`: a record with the field `json_file`."""
    return BenchRun(
        benchmark=benchmark, options=options, started_s=time.time(), machine=this_machine()
    )


def begin_services(
    benchmark: str, options: ServiceOptions, broker: str | None = None
) -> ServicesRun:
    """Begins a run on `broker`, or on Apache Kafka that the benchmark starts.

    Raises `ConfigError` where no broker can be started.
    """
    if broker is None:
        require_kafka()
    run = ServicesRun(
        **msgspec.structs.asdict(begin(benchmark, options)),
        folder=(options.work / benchmark).resolve(),
        settings=parse_settings(options.settings),
        broker=broker or started_broker(),
    )
    run.note(f"logs of the services: {run.folder}")
    return run


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
