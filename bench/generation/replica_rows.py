"""Simulates one stream at four servers: rows for routing by cached prefixes and for baselines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from bench.generation.block_simulator import CacheSize
from bench.generation.order_rows import BACKLOG
from bench.generation.replicas import ReplicasCase, send_to_replicas
from bench.generation.simulation import Renderer
from bench.generation.streams import Ask, StreamName

SERVERS = 4
KILLED_AFTER = 1_000
REPLICA_SHARE_MIN = 0.54
REPLICA_LOAD_MAX = 1.05
"""What is promised by Zipf: the hit share of all servers, and requests of the busiest one over the
mean."""
REPLICA_CASES = (
    ReplicasCase(servers=SERVERS, order=None),
    ReplicasCase(servers=SERVERS, order="arrival", backlog=-16),
    ReplicasCase(servers=SERVERS, order="cached_prefix", backlog=BACKLOG, overtaken_max=BACKLOG),
    ReplicasCase(
        servers=SERVERS,
        order="cached_prefix",
        backlog=BACKLOG,
        overtaken_max=BACKLOG,
        killed_after=KILLED_AFTER,
    ),
)


class ReplicaRow(msgspec.Struct, frozen=True, kw_only=True):
    """A way to share prompts out to servers, and what came of it.

    `order`: "round robin" knows no cache. `backlog`: prompts that wait; less than 0: so many slots
    are free. The other fields are those of `ReplicasResult`.
    """

    stream: StreamName
    order: str
    backlog: int
    is_killed: bool
    hit_share: float
    requests_of_mean: float
    computed_of_mean: float
    resent: int
    unanswered: int
    miscredited_blocks: int


def replica_rows(
    stream: StreamName, asks: Sequence[Ask], size: CacheSize, renderer: Renderer
) -> Iterator[ReplicaRow]:
    """Yields a row for each of `REPLICA_CASES`, as it is simulated."""
    for case in REPLICA_CASES:
        found = send_to_replicas(asks, case, size, renderer)
        yield ReplicaRow(
            stream=stream,
            order=case.order or "round robin",
            backlog=0 if case.order is None else case.backlog,
            is_killed=case.killed_after is not None,
            hit_share=found.share.share,
            requests_of_mean=found.requests_of_mean,
            computed_of_mean=found.computed_of_mean,
            resent=found.resent,
            unanswered=len(asks) - found.answered,
            miscredited_blocks=found.miscredited_blocks,
        )
