"""Which passages leave RAGCache's tree first: LRU, LFU, GDSF, PGDSF, and an oracle. Pure.

The node with the least priority is evicted first; if equal, the node that is longer in the cache.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Literal, get_args

from bench.generation.host_tier import TreeNode, TreePolicy, TreeRequest

TreePolicyName = Literal["lru", "lfu", "gdsf", "pgdsf", "oracle"]
TREE_POLICY_NAMES: tuple[TreePolicyName, ...] = get_args(TreePolicyName)


class PrefillProfile:
    """The time of a prefill by cached and computed tokens, between measured points.

    Bilinear interpolation (RAGCache, Algorithm 1, lines 6 to 9); beyond the outermost points the
    last two go on.
    """

    def __init__(
        self,
        cached: Sequence[int],
        computed: Sequence[int],
        times_ms: Sequence[Sequence[float]],
    ) -> None:
        """`times_ms`: a row for each of `cached`, a column for each of `computed`."""
        for points in (cached, computed):
            if len(points) < 2 or any(low >= high for low, high in pairwise(points)):
                raise ValueError(f"a profile needs two points or more, and rising ones: {points}")
        self._cached, self._computed, self._times_ms = cached, computed, times_ms

    def time_ms(self, cached: int, computed: int) -> float:
        """Returns the estimated time of a prompt's prefill."""
        row, along = _between(self._cached, cached)
        column, down = _between(self._computed, computed)
        at = self._times_ms
        low = at[row][column] + along * (at[row + 1][column] - at[row][column])
        high = at[row][column + 1] + along * (at[row + 1][column + 1] - at[row][column + 1])
        return low + down * (high - low)


class TreeLru:
    """The node that was used least recently goes first."""

    def touch(self, node: TreeNode, request: TreeRequest, *, was_cached: bool) -> None:
        """See `TreePolicy`."""
        node.gpu_priority = node.host_priority = request.number

    def evicted(self, node: TreeNode, *, from_gpu: bool) -> None:
        """See `TreePolicy`."""


class TreeLfu:
    """The node that the fewest requests used goes first."""

    def touch(self, node: TreeNode, request: TreeRequest, *, was_cached: bool) -> None:
        """See `TreePolicy`."""
        node.gpu_priority = node.host_priority = node.frequency

    def evicted(self, node: TreeNode, *, from_gpu: bool) -> None:
        """See `TreePolicy`."""


class TreeGdsf:
    """Greedy-Dual-Size-Frequency (Cherkasova 1998). Each tier has its own clock.

    The cost of a passage is proportional to its size, as RAGCache's evaluation has it (section
    7.3), so a frequency ages by the clock, and sizes do not matter.
    """

    def __init__(self) -> None:
        self._gpu_clock = self._host_clock = 0.0

    def touch(self, node: TreeNode, request: TreeRequest, *, was_cached: bool) -> None:
        """See `TreePolicy`."""
        # Priority = Clock + Frequency * Cost / Size
        worth = node.frequency * self._cost_over_size(node, request, was_cached)
        node.gpu_priority = self._gpu_clock + worth
        node.host_priority = self._host_clock + worth

    def evicted(self, node: TreeNode, *, from_gpu: bool) -> None:
        """See `TreePolicy`."""
        if from_gpu:
            self._gpu_clock = max(self._gpu_clock, node.gpu_priority)
        else:
            self._host_clock = max(self._host_clock, node.host_priority)

    def _cost_over_size(self, node: TreeNode, request: TreeRequest, was_cached: bool) -> float:
        return 1.0


class TreePgdsf(TreeGdsf):
    """RAGCache's prefix-aware GDSF (section 5.1, Eq. 1 to 3, Algorithm 1).

    The cost of a node over its size is the mean, over the requests that had it uncached, of the
    time of their prefill for each token that they computed. So a node counts more where it stands
    behind much that is cached, and where prompts are short.
    """

    def __init__(self, profile: PrefillProfile) -> None:
        super().__init__()
        self._profile = profile

    def _cost_over_size(self, node: TreeNode, request: TreeRequest, was_cached: bool) -> float:
        if not was_cached:
            time_ms = self._profile.time_ms(request.cached_tokens, request.computed_tokens)
            node.total_cost += time_ms / request.computed_tokens
            node.times_computed += 1
        # Cost / Size = 1/m * sum of Cost_i / NewSize_i
        return node.total_cost / node.times_computed


class TreeOracle:
    """The node whose next use is farthest in the future goes first. It knows all requests.

    Not the optimum where passages differ in size, and it admits all passages, as the others do.
    """

    def __init__(self, requests: Sequence[Sequence[int]]) -> None:
        """`requests`: the passages of all requests, in order."""
        self._uses: dict[tuple[int, ...], list[int]] = {}
        for number, passages in enumerate(requests):
            for length in range(1, len(passages) + 1):
                self._uses.setdefault(tuple(passages[:length]), []).append(number)

    def touch(self, node: TreeNode, request: TreeRequest, *, was_cached: bool) -> None:
        """See `TreePolicy`."""
        uses = self._uses[_passages_of(node)]
        place = bisect_right(uses, request.number)
        next_use = uses[place] if place < len(uses) else float("inf")
        node.gpu_priority = node.host_priority = -next_use

    def evicted(self, node: TreeNode, *, from_gpu: bool) -> None:
        """See `TreePolicy`."""


def make_policy(
    name: TreePolicyName, requests: Sequence[Sequence[int]], profile: PrefillProfile
) -> TreePolicy:
    """Returns a new policy. `requests`: the passages of all requests, for the oracle."""
    made: dict[TreePolicyName, Callable[[], TreePolicy]] = {
        "lru": TreeLru,
        "lfu": TreeLfu,
        "gdsf": TreeGdsf,
        "pgdsf": lambda: TreePgdsf(profile),
        "oracle": lambda: TreeOracle(requests),
    }
    return made[name]()


def _passages_of(node: TreeNode) -> tuple[int, ...]:
    parent = node.parent
    return () if parent is None else (*_passages_of(parent), node.passage)


def _between(points: Sequence[int], value: int) -> tuple[int, float]:
    """Returns the place of the lower of two neighbours, and how far between them `value` is."""
    place = min(max(bisect_right(points, value) - 1, 0), len(points) - 2)
    return place, (value - points[place]) / (points[place + 1] - points[place])
