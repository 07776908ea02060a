"""A run of a benchmark of the services: where it works, how it is set, and its report."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

from bench.core.command import reported
from bench.core.kafka import require_kafka, started_broker
from bench.core.options import ServiceOptions
from bench.core.report import RunStart, finish
from bench.core.stack import parse_settings
from bench.core.tables import table_of
from carpool.terminal import TerminalConsole


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
        shown: Mapping[str, Any] | Callable[[Console], None],
        *,
        promises: dict[str, bool],
        results: Any,
        **facts: Any,
    ) -> bool:
        """Writes and prints the report; returns whether every promise was kept.

        `shown`: the results of a table, by column, or what prints tables. `facts`: further fields
        of the report.
        """

        def show(console: Console) -> None:
            if callable(shown):
                shown(console)
            else:
                console.print(table_of(self.benchmark, shown))

        report = self.start.report(
            self.benchmark,
            settings=reported(self.options) | {"services": self.settings},
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
