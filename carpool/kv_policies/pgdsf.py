"""PGDSF, RAGCache's replacement policy (5.1), for the second tier of vLLM's KV cache, on the host.

vLLM's process imports this file by its name alone: it needs vLLM 0.32 and nothing of Carpool. A
node of the paper's tree is a chunk here: a block of tokens after all blocks before it. Of the
chunks behind which no other chunk is in the tier, the one with the least priority goes first:

    Priority = Clock + Frequency * Cost / Size                                             (Eq. 1)

Each tier has a policy, and so a clock, of its own. Do not use it where the chunks that were used
last are used next: LRU keeps these too. A use and an eviction cost O(log chunks).
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from vllm.v1.kv_offload.base import OffloadKey, ReqContext
from vllm.v1.kv_offload.cpu.policies.base import CachePolicy, ChunkStatus

PAST_FACTOR = 4
"""Evicted chunks whose frequency and cost are remembered, for each chunk that the tier holds."""
CACHED_TOKENS = (0, 256, 1024, 3072)
NEW_TOKENS = (32, 128, 512, 1024)
PREFILL_MS = (
    (117.2, 336.4, 1351.9, 2921.5),
    (147.5, 393.8, 1512.8, 3401.1),
    (156.1, 468.3, 1869.3, 4063.0),
    (259.0, 761.3, 2811.3, 5914.9),
)
"""The profile: a row for cached tokens, a column for new ones. Only ratios matter. Of SmolLM2-135M
in float32: CPU time of one thread, the least of five."""


def prefill_ms(cached: int, new: int) -> float:
    """Returns the estimated time of a prefill, by bilinear interpolation (Algorithm 1).

    Beyond the outermost points of the profile, the line through the last two goes on.
    """
    row, down = _between(CACHED_TOKENS, cached)
    column, along = _between(NEW_TOKENS, new)
    (a, b), (c, d) = (PREFILL_MS[at][column : column + 2] for at in (row, row + 1))
    low, high = a + down * (c - a), b + down * (d - b)
    return low + along * (high - low)


def _between(points: Sequence[int], value: int) -> tuple[int, float]:
    """Returns the place of the lower of two neighbours, and how far between them `value` is."""
    place = min(max(bisect_right(points, value) - 1, 0), len(points) - 2)
    return place, (value - points[place]) / (points[place + 1] - points[place])


@dataclass(slots=True, eq=False)
class _Node:
    """A chunk, or what is remembered of one. `children`: the chunks behind it in the tier."""

    key: OffloadKey
    chunk: ChunkStatus
    parent: _Node | None = None
    children: int = 0
    position: int = 0
    frequency: int = 0
    total_cost: float = 0.0
    times_computed: int = 0
    priority: float = 0.0

    @property
    def is_free_leaf(self) -> bool:
        return self.children == 0 and self.chunk.ref_cnt == 0  # no transfer uses it


class Pgdsf(CachePolicy):  # type: ignore[misc]  # mypy does not follow vLLM
    """See the module. vLLM's manager says which chunks are used, pinned, stored and needed."""

    def __init__(self, cache_capacity: int) -> None:
        """`cache_capacity`: chunks."""
        super().__init__(cache_capacity)
        self.clear()

    def clear(self) -> None:
        """Forgets all chunks, their frequencies and the clock."""
        self._nodes: dict[OffloadKey, _Node] = {}
        self._past: OrderedDict[OffloadKey, _Node] = OrderedDict()  # evicted, the latest last
        self._offered: dict[OffloadKey, tuple[float, int]] = {}  # cost and position, to come in
        self._heap: list[tuple[float, int, OffloadKey]] = []  # free leaves, and old entries
        self._clock = 0.0
        self._chunk_tokens: int | None = None

    def get(self, key: OffloadKey) -> ChunkStatus | None:
        """Returns the chunk, if it is in the tier."""
        return self._nodes[key].chunk if key in self._nodes else None

    def on_store_miss(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        """Notes the cost of chunks that a request has computed and that may come in."""
        ends = {key: req_context.get_offload_key_position(key) or 0 for key in keys}
        first, last = min(ends.values()), max(ends.values())
        self._chunk_tokens = min(first, self._chunk_tokens or first)
        cached = first - self._chunk_tokens
        new = max(1, last - cached)
        cost = prefill_ms(cached, new) / new  # Cost_i / NewSize_i
        self._offered |= {key: (cost, end) for key, end in ends.items()}

    def insert(self, key: OffloadKey, chunk: ChunkStatus) -> None:
        """Adds a chunk that a request has computed."""
        node = self._nodes[key] = self._past.pop(key, _Node(key, chunk))
        node.chunk = chunk
        if key in self._offered:
            cost, node.position = self._offered[key]
            node.total_cost += cost
            node.times_computed += 1
        self._rank(node, uses=1)

    def touch(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        """Counts a use of each of these chunks."""
        for key in keys:
            if key in self._nodes:
                self._rank(self._nodes[key], uses=1)

    def on_request_finished(
        self,
        key_groups: Sequence[Sequence[OffloadKey]],
        insertion_only_keys: set[OffloadKey],
        reused_keys: set[OffloadKey],
        req_context: ReqContext,
    ) -> None:
        """Counts a use of the chunks that a request has reused, and learns what follows what."""
        for keys in filter(None, key_groups):
            self._link(keys)
            self.touch((key for key in keys if key in reused_keys), req_context)
            # A request that loads chunks does not name those before them that the GPU had.
            node = self._nodes.get(keys[0])
            while node is not None and (node := node.parent) is not None:
                self._rank(node, uses=1)
            for key in keys:
                self._offered.pop(key, None)

    def mark_evictable(self, key: OffloadKey) -> None:
        """Lets a chunk that was stored or loaded go; its use is counted when its request ends."""
        self._rank(self._nodes[key], uses=0)

    def evict(
        self, n: int, protected: set[OffloadKey]
    ) -> list[tuple[OffloadKey, ChunkStatus]] | None:
        """Evicts the `n` chunks of least priority; if equal, the last of a prompt goes first.

        Returns None, and evicts nothing, where so many cannot go.
        """
        evicted, kept = list[_Node](), list[_Node]()
        while self._heap and len(evicted) < n:
            priority, _, key = heapq.heappop(self._heap)
            node = self._nodes.get(key)
            if node is None or node.priority != priority or not node.is_free_leaf:
                continue  # an old entry
            if key in protected:
                kept.append(node)
            else:
                self.remove(key)
                evicted.append(node)
        if is_enough := len(evicted) == n:
            for node in evicted:
                self._clock = max(self._clock, node.priority)  # (Eq. 2)
                node.parent = None
                self._past[node.key] = node
                if len(self._past) > PAST_FACTOR * self.cache_capacity:
                    self._past.popitem(last=False)
        else:
            for node in evicted:
                self._nodes[node.key] = node
                if node.parent is not None:
                    node.parent.children += 1
            kept += evicted
        for node in kept:
            self._push(node)
        return [(node.key, node.chunk) for node in evicted] if is_enough else None

    def remove(self, key: OffloadKey) -> None:
        """Removes a chunk."""
        node = self._nodes.pop(key)
        if node.parent is not None:
            node.parent.children -= 1
            self._push(node.parent)

    def _rank(self, node: _Node, *, uses: int) -> None:
        node.frequency += uses
        # Cost / Size = 1 / m * (Cost_1 / NewSize_1 + ... + Cost_m / NewSize_m)              (Eq. 3)
        cost_over_size = node.total_cost / max(1, node.times_computed)
        node.priority = self._clock + node.frequency * cost_over_size
        self._push(node)

    def _link(self, keys: Sequence[OffloadKey]) -> None:
        """Learns that each of these chunks follows the one before it."""
        for parent, node in pairwise([self._nodes[key] for key in keys if key in self._nodes]):
            if node.parent is None:
                node.parent = parent
                parent.children += 1

    def _push(self, node: _Node) -> None:
        """Lets `evict` find a free leaf. Entries from before stay; `evict` drops them."""
        if node.is_free_leaf and node.key in self._nodes:
            heapq.heappush(self._heap, (node.priority, -node.position, node.key))
            if len(self._heap) > 64 + 2 * len(self._nodes):
                self._heap = []
                for one in self._nodes.values():
                    self._push(one)


pgdsf = Pgdsf
"""The name that `vllm.kv_host_policy` has."""
