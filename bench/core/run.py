"""A run of a benchmark and its report: tables, promises, one JSON with all that it depends on."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from rich.table import Table
from rich.text import Text

from bench.core.kafka import kafka_version
from bench.core.machine import revision_of, this_machine
from bench.core.options import ServiceOptions, reported
from bench.core.stack import parse_settings
from carpool.errors import ConfigError
from carpool.terminal import TerminalConsole, harmless_json, print_plain

TABLE_WIDTH = 170
"""The width of tables where there is no terminal."""

Tables = Mapping[str, Mapping[str, Any]]
"""The columns of each table, by its title."""


class BenchRun:
    """A run that has begun. The report has the load of the machine at that time."""

    def __init__(self, benchmark: str, options: Any, **facts: Any) -> None:
        """`options`: a record with the field `json_file`. `facts`: more fields of the report."""
        self.benchmark, self.options, self._facts = benchmark, options, facts
        self._started_s, self._machine = time.time(), this_machine()

    def note(self, text: str) -> None:
        """Prints a line of progress to standard error."""
        TerminalConsole(stderr=True).print(text, soft_wrap=True)

    def _usual_facts(self) -> dict[str, Any]:
        return {
            "benchmark": self.benchmark,
            "command": ["carpool", *sys.argv[1:]],
            "started": datetime.fromtimestamp(self._started_s, UTC).isoformat(timespec="seconds"),
            "duration_s": round(time.time() - self._started_s, 3),
            "machine": self._machine,
            "revision": revision_of(Path(__file__).parent),
            "settings": reported(self.options),
            **self._facts,
        }

    def finish(
        self, tables: Tables, *, promises: dict[str, bool], results: Any, **facts: Any
    ) -> bool:
        """Writes the JSON, prints tables and promises; returns whether every promise was kept.

        `facts`: further fields of the report, or instead of the usual ones: `data`, the files that
        were read, and `index`, the facts of the one that was searched. Tables go to standard error
        where the JSON goes to standard output. Raises `ConfigError` where it cannot be written.
        """
        json_file = self.options.json_file
        if json_file is not None:
            report = {**self._usual_facts(), **facts, "promises": promises, "results": results}
            write_report(report, json_file)
        uses_stderr = str(json_file) == "-"
        console = TerminalConsole(stderr=uses_stderr)
        if not console.is_terminal:
            console = TerminalConsole(stderr=uses_stderr, width=TABLE_WIDTH)
        for title, columns in tables.items():
            console.print(table_of(title, columns))
        for promise, is_kept in promises.items():
            console.print(Text("holds ", "green") if is_kept else Text("BROKEN", "red"), promise)
        return all(promises.values())


class ServicesRun(BenchRun):
    """A run of services, with `settings` as environment variables. Logs are in `folder`."""

    def __init__(self, benchmark: str, options: ServiceOptions, broker: str | None = None) -> None:
        """`broker` is its name in the report; None: the benchmark starts Apache Kafka."""
        self.settings = parse_settings(options.settings)
        broker = broker or f"Apache Kafka {kafka_version()}, started for the run"
        super().__init__(benchmark, options, services=self.settings, broker=broker)
        self.folder = (options.work / benchmark).resolve()
        self.note(f"logs of the services: {self.folder}")


def write_report(report: Mapping[str, Any], path: Path) -> None:
    """Writes JSON; `-` is standard output. Raises `ConfigError` where it cannot be written."""
    content = msgspec.json.format(msgspec.json.encode(report, enc_hook=str), indent=2)
    if str(path) == "-":
        print_plain(harmless_json(content.decode()))
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content + b"\n")
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}; name another file") from error


def table_of(title: str, columns: Mapping[str, Any]) -> Table:
    """Returns a table with a column for each of `columns`: a struct, or values by name."""
    found = {name: dict(figures(value)) for name, value in columns.items()}
    table = Table(title, *found)
    for figure in dict.fromkeys(figure for each in found.values() for figure in each):
        table.add_row(figure, *(each.get(figure, "-") for each in found.values()))
    return table


def figures(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Yields the name and the text of each figure in a result.

    A struct with a text of its own is one figure. Sequences of structs are left to the JSON.
    """
    if isinstance(value, msgspec.Struct) and "__str__" in vars(type(value)):
        yield name, str(value)
    elif isinstance(value, msgspec.Struct | Mapping):
        fields = value if isinstance(value, Mapping) else msgspec.structs.asdict(value)
        for key, each in fields.items():
            yield from figures(each, f"{name}: {key}" if name else str(key).replace("_", " "))
    elif isinstance(value, float):
        yield name, f"{value:,.3g}" if abs(value) < 100 else f"{value:,.0f}"
    elif isinstance(value, bool | str | None):
        yield name, "-" if value is None else str(value)
    elif isinstance(value, int):
        yield name, f"{value:,}"
    elif not any(isinstance(each, msgspec.Struct) for each in value):
        yield name, ", ".join(map(str, value)) or "none"
