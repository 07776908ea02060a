"""The table of `carpool bench simulator`, and what has to be said beside it."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from rich.table import Table

from bench.simulator.agreement import OFF_MAX, OTHERS_MAX, Agreement, is_close

DISK_RANGE_MAX = 1.25
"""The disk's rates before and after the rounds, the highest over the lowest, before the disk counts
as disturbed.
"""


def agreement_table(found: Agreement) -> Table:
    """Returns a line for bytes and one for each figure of the latencies: real (each query's median
    over the rounds), simulated, and what became of the promise.
    """
    table = Table(
        "",
        "real",
        "lowest",
        "highest",
        "simulated",
        "ratio",
        "holds",
        title=_name(found),
        title_justify="left",
    )
    ratio = found.simulated_bytes / statistics.median(found.real_bytes)
    table.add_row(
        "bytes",
        f"{int(statistics.median(found.real_bytes)):,}",
        *(
            f"{count:,}" if len(set(found.real_bytes)) > 1 else ""
            for count in (min(found.real_bytes), max(found.real_bytes))
        ),
        f"{found.simulated_bytes:,}",
        "equal" if found.bytes_are_equal else f"{ratio:.3f}",
        _yes(found.bytes_agree),
    )
    for name, ratio in found.latency_ratios.items():
        rounds = [getattr(round_ms, name) for round_ms in found.rounds_ms]
        of_all = (
            getattr(found.real_ms, name),
            min(rounds),
            max(rounds),
            getattr(found.simulated_ms, name),
        )
        table.add_row(
            f"{name} ms", *(f"{ms:,.1f}" for ms in of_all), f"{ratio:.2f}", _yes(is_close(ratio))
        )
    return table


def remarks(agreements: Sequence[Agreement]) -> Iterator[str]:
    """Yields what a reader of the table must know: the rules, then every promise that is not kept,
    then disturbances.
    """
    yield (
        f"Bytes must be equal; mean, p50 and p99 within {OFF_MAX:.0%} of the real ones. A query's "
        "real latency is its median over the rounds; lowest and highest are of whole rounds."
    )
    for found in agreements:
        name = _name(found)
        if found.asked.way.reads_depend_on_time:
            yield (
                f"{name}: what it reads ahead depends on time, so its bytes too are held to "
                f"{OFF_MAX:.0%}."
            )
        if not found.bytes_agree:
            yield (
                f"{name}: BYTES DIFFER. The simulator does not do what the searcher does: "
                "its figures mean nothing."
            )
        if not found.latencies_agree:
            yield f"{name}: latencies differ by more than {OFF_MAX:.0%}."
        least, most = min(found.others), max(found.others)
        yield (
            f"{name}: others took {least:.0%} to {most:.0%} of the CPUs in its "
            f"{len(found.others)} runs."
        )
        if found.disturbed:
            yield (
                f"{name}: the machine was disturbed in {found.disturbed} of {len(found.others)} "
                f"runs: others took over {OTHERS_MAX:.0%} of the CPUs. Latencies say nothing then; "
                "bytes do. Run it again on a quiet machine."
            )
        if found.disk_range > DISK_RANGE_MAX:
            yield (
                f"{name}: the disk was up to {found.disk_range:.1f} times as fast at one time as "
                "at another; the simulation "
                "was told of the median. Run it again while nobody else reads or writes."
            )


def _name(found: Agreement) -> str:
    return f"{found.asked.way.name}, windows of {found.asked.window}"


def _yes(holds: bool) -> str:
    return "yes" if holds else "NO"
