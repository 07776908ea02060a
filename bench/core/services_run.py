"""A run of a benchmark of the services: where it works, how it is set, and its report."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import msgspec
from rich.console import Console

from bench.core.command import reported
from bench.core.kafka import require_kafka, started_broker
from bench.core.report import RunStart, finish
from bench.core.stack import parse_settings
from carpool.terminal import TerminalConsole


class ServiceOptions(Protocol):
    """The options that every benchmark of the services has. `settings`: SECTION.NAME=VALUE each."""

    @property
    def work(self) -> Path: ...
    @property
    def settings(self) -> list[str]: ...
    @property
    def json_file(self) -> Path | None: ...


class ServicesRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run that has begun. `folder`: of logs; `settings`: environment variables of the services.

    `broker`: what the report calls the brokers.
    """

    benchmark: str
    options: Any
    start: RunStart
    folder: Path
    settings: dict[str, str]
    broker: str

    def note(self, text: str) -> None:
        """Prints a line of progress to standard error."""
        TerminalConsole(stderr=True).print(text)

    def finish(
        self,
        show: Callable[[Console], None],
        *,
        promises: dict[str, bool],
        results: Any,
        settings: dict[str, Any] | None = None,
        **facts: Any,
    ) -> bool:
        """Writes and prints the report; returns whether every promise was kept.

        `show` prints the tables. `settings`: further ones. `facts`: further fields of the report.
        """
        report = self.start.report(
            self.benchmark,
            settings=reported(self.options) | {"services": self.settings} | (settings or {}),
            promises=promises,
            results=results,
            broker=self.broker,
            **facts,
        )
        return finish(report, self.options.json_file, show)


def begin_run(benchmark: str, options: ServiceOptions, broker: str | None = None) -> ServicesRun:
    """Begins a run on `broker`, or on Apache Kafka that the benchmark starts.

    Raises `ConfigError` where no broker can be started.
    """
    if broker is None:
        require_kafka()
    run = ServicesRun(
        benchmark=benchmark,
        options=options,
        start=RunStart.now(),
        folder=(options.work / benchmark).resolve(),
        settings=parse_settings(options.settings),
        broker=broker or started_broker(),
    )
    run.note(f"logs of the services: {run.folder}")
    return run
