"""Results as tables: a row for each figure, a column for each thing that was measured. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from rich.table import Table

from bench.core.spread import Spread


def table_of(title: str, columns: Mapping[str, Any]) -> Table:
    """Returns a table with a column for each of `columns`: a struct, or values by name."""
    found = {name: dict(figures(value)) for name, value in columns.items()}
    table = Table(title, *found)
    for figure in dict.fromkeys(figure for each in found.values() for figure in each):
        table.add_row(figure, *(each.get(figure, "-") for each in found.values()))
    return table


def figures(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Yields the name and the text of each figure in a result.

    A spread is one figure: `p50 / p99 / max`. Sequences of structs are left to the JSON.
    """
    if isinstance(value, Spread):
        yield name, f"{value.p50:,.1f} / {value.p99:,.1f} / {value.max:,.1f}"
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
