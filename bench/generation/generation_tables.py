"""The tables of `carpool bench generation`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from bench.generation.killed_server import KilledServer
from bench.generation.order_rows import OrderRow
from bench.generation.real_rows import RealRow
from bench.generation.replica_rows import ReplicaRow
from bench.generation.tier_rows import TierRow

if TYPE_CHECKING:
    from bench.generation.generation import GenerationResult


def print_generation(console: Console, result: GenerationResult) -> None:
    """Prints a table for each part that was run."""
    if result.orders:
        console.print(orders_table(result.orders))
    if result.tiers:
        console.print(tiers_table(result.tiers))
    if result.replicas:
        console.print(replicas_table(result.replicas))
    if result.real:
        console.print(real_table(result.real))
    if result.killed is not None:
        console.print(killed_table(result.killed))


def orders_table(rows: Sequence[OrderRow]) -> Table:
    """Returns a line for each order, with the hit share and the computed tokens by stream."""
    streams = list(dict.fromkeys(row.stream for row in rows))
    table = Table(
        *("prompts", "order", "backlog", "overtaken at most", "score loss at most"),
        *streams,
        title="Simulated: cached share of the prompt tokens; computed tokens an answer",
    )
    lines: dict[tuple[str, ...], dict[str, str]] = {}
    for row in rows:
        key: tuple[str, ...] = (
            row.template,
            row.order + (", one generation for equal prompts" if row.reuse else ""),
            "all" if row.backlog == 0 else f"{row.backlog:,}",
            "-" if row.overtaken_max is None else f"{row.overtaken_max:,}",
            "-" if row.score_loss_max is None else f"{row.score_loss_max:g}",
        )
        cell = f"{row.hit_share:.1%}; {row.computed_per_answer:.0f}"
        lines.setdefault(key, {})[row.stream] = cell
    for key, cells in lines.items():
        table.add_row(*key, *(cells.get(stream, "") for stream in streams))
    return table


def tiers_table(rows: Sequence[TierRow]) -> Table:
    """Returns a line for each size of the host's memory and policy."""
    streams = list(dict.fromkeys(row.stream for row in rows))
    table = Table(
        *("host over GPU", "policy", *streams),
        title="Simulated tree of passages: cached share in both tiers (on the host); swapped out",
    )
    lines: dict[tuple[str, str], dict[str, str]] = {}
    for row in rows:
        cell = f"{row.hit_share:.1%} ({row.host_share:.1%}); {row.swapped_out_share:.1%}"
        lines.setdefault((str(row.host_times), row.policy), {})[row.stream] = cell
    for key, cells in lines.items():
        table.add_row(*key, *(cells.get(stream, "") for stream in streams))
    return table


def replicas_table(rows: Sequence[ReplicaRow]) -> Table:
    """Returns a line for each way to share prompts out."""
    table = Table(
        *("stream", "order", "backlog", "one is killed", "cached", "requests over the mean"),
        *("computed over the mean", "sent again", "credited in vain"),
        title="Simulated: several servers",
    )
    for row in rows:
        table.add_row(
            *(row.stream, row.order, f"{row.backlog:,}", "yes" if row.is_killed else "no"),
            *(f"{row.hit_share:.1%}", f"{row.requests_of_mean:.2f}"),
            *(f"{row.computed_of_mean:.2f}", str(row.resent), str(row.miscredited_blocks)),
        )
    return table


def real_table(rows: Sequence[RealRow]) -> Table:
    """Returns a line for each run of vLLM."""
    table = Table(
        *("stream", "servers", "order", "backlog", "prompts", "simulated", "reported"),
        *("difference", "prompts with equal counts"),
        title="Cached share of the prompt tokens, simulated and as a real vLLM reports it",
    )
    for row in rows:
        table.add_row(
            *(row.stream, str(row.servers), row.order, str(row.backlog), str(row.prompts)),
            *(f"{row.simulated_share:.4f}", f"{row.reported_share:.4f}", f"{row.off:+.4f}"),
            str(row.equal_prompts),
        )
    return table


def killed_table(killed: KilledServer) -> Table:
    """Returns a line for each part of the run."""
    ready = "no longer" if killed.ready_after_s is None else f"after {killed.ready_after_s} s"
    table = Table(
        *("server", "prompts", "simulated", "reported", "prompts with equal counts"),
        title="Cached share of the prompt tokens, simulated and as a real vLLM reports it",
        caption=f"{killed.answered} of {killed.prompts} answered, {killed.answered_twice} twice; "
        f"{killed.lost_requests} requests were lost with the killed server; its "
        f"{killed.blocks_at_kill} blocks counted as cached for {killed.emptied_after_ms} ms, later "
        f"{killed.blocks_while_down}; ready again: {ready}; answers credited in vain: "
        f"{killed.credited_in_vain}",
    )
    for part in killed.parts:
        table.add_row(
            *(part.server, str(part.prompts), f"{part.simulated_share:.4f}"),
            *(f"{part.reported_share:.4f}", str(part.equal_prompts)),
        )
    return table
