"""RAGCache's PGDSF in vLLM's own manager of the host tier (section 5.1)."""

from __future__ import annotations

import ast
import importlib
import re
import sys
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from carpool.errors import ConfigError
from carpool.vllm import KV_POLICY, check_kv_host_policy

CHUNK_TOKENS = 32
Path = tuple[int, ...]
"""Names a chunk: what is in it, after what is in the chunks before it."""


def test_the_module_needs_vllm_and_nothing_else_that_is_not_pythons() -> None:
    imports = re.findall(r"^\s*(?:import|from) (\w+)", KV_POLICY.read_text(), re.MULTILINE)
    assert set(imports) - sys.stdlib_module_names == {"vllm"}


@pytest.fixture(scope="module")
def pgdsf() -> Any:
    """The module, as vLLM's process imports it."""
    if str(KV_POLICY.parent) not in sys.path:
        sys.path.append(str(KV_POLICY.parent))
    with warnings.catch_warnings(action="ignore"):
        importlib.import_module("vllm.v1.kv_offload.cpu.manager")
    return importlib.import_module(KV_POLICY.stem)


class Tier:
    """vLLM's manager, used as its scheduler does for a GPU that keeps nothing."""

    def __init__(self, chunks: int, policy: str = "pgdsf") -> None:
        from vllm.v1.kv_offload.cpu.manager import CPUOffloadingManager

        self.manager = CPUOffloadingManager(
            num_chunks=chunks,
            cache_policy=policy,
            cache_policy_module_path=KV_POLICY.stem,
            enable_events=True,
        )
        self.policy: Any = self.manager._policy
        self.asked = 0

    def begin(self, path: Path) -> tuple[Any, list[bytes]]:
        """Returns the context of a request for chunks, and their keys."""
        from vllm.v1.kv_offload.base import ReqContext

        context = ReqContext(req_id=str(self.asked))
        self.asked += 1
        self.manager.on_new_request(context)
        keys = [key_of(path[: end + 1]) for end in range(len(path))]
        for place, key in enumerate(keys, start=1):
            context.set_offload_key_position(key, place * CHUNK_TOKENS)
        return context, keys

    def ask(self, *path: int) -> int:
        """Serves a request; returns how many chunks at its beginning were there."""
        from vllm.v1.kv_offload.base import LookupResult

        context, keys = self.begin(path)
        found = 0
        while found < len(keys) and self.manager.lookup(keys[found], context) is LookupResult.HIT:
            found += 1
        if found:
            self.manager.prepare_load(keys[:found], context)
            self.manager.complete_load(keys[:found], context)
        output = self.manager.prepare_store(keys, context)
        if output is not None:
            self.manager.complete_store(output.keys_to_store, context)
        self.manager.on_request_finished(context)
        return found

    def evicted(self) -> list[Path]:
        """Returns the chunks that have left since the last call."""
        gone = [key for event in self.manager.take_events() if event.removed for key in event.keys]
        return [path_of(key) for key in gone]

    def has(self, *path: int) -> bool:
        return self.policy.get(key_of(path)) is not None

    def node(self, *path: int) -> Any:
        return self.policy._nodes[key_of(path)]


def key_of(path: Sequence[int]) -> Any:
    from vllm.v1.kv_offload.base import make_offload_key

    return make_offload_key(repr(tuple(path)).encode(), 0)


def path_of(key: bytes) -> Path:
    found: Path = ast.literal_eval(key[:-4].decode())
    return found


@pytest.mark.vllm
def test_what_the_gpu_had_before_the_chunks_that_are_loaded_counts_as_used(pgdsf: Any) -> None:
    tier = Tier(3)
    tier.ask(1, 2, 3)
    context, keys = tier.begin((1, 2, 3))
    tier.manager.prepare_load(keys[1:], context)
    tier.manager.complete_load(keys[1:], context)
    tier.manager.on_request_finished(context)
    assert [tier.node(*(1, 2, 3)[:end]).frequency for end in (1, 2, 3)] == [2, 2, 2]


@pytest.mark.vllm
def test_where_too_few_chunks_may_go_none_goes(pgdsf: Any) -> None:
    tier = Tier(3)
    tier.ask(1)
    tier.ask(2)
    tier.ask(3)
    reading, keys = tier.begin((1,))
    tier.manager.prepare_load(keys, reading)  # a transfer that has not ended
    before = dict(tier.policy._nodes)
    context, keys = tier.begin((2, 7, 8))
    assert tier.manager.prepare_store([key_of((2,)), *keys[1:]], context) is None
    assert tier.policy._nodes == before and tier.evicted() == []
    tier.manager.complete_load([key_of((1,))], reading)
    assert tier.manager.prepare_store([key_of((2,)), *keys[1:]], context) is not None
    assert sorted(tier.evicted()) == [(1,), (3,)]


@pytest.mark.vllm
def test_a_chunk_that_could_not_be_stored_is_gone_and_a_reset_forgets_all(pgdsf: Any) -> None:
    tier = Tier(2)
    context, keys = tier.begin((1,))
    tier.manager.prepare_store(keys, context)
    tier.manager.complete_store(keys, context, success=False)
    assert not tier.has(1)
    assert (tier.ask(1), tier.ask(1)) == (0, 1)
    tier.manager.reset_cache()
    assert (tier.ask(1), tier.node(1).frequency, tier.policy._clock) == (0, 1, 0.0)


class PlainPgdsf:
    """Equations 1 to 3 and Algorithm 1 by the letter, in time O(chunks²) for each eviction."""

    def __init__(self, chunks: int, pgdsf: Any) -> None:
        self.chunks, self.prefill_ms, self.clock = chunks, pgdsf.prefill_ms, 0.0
        self.remembered = pgdsf.PAST_FACTOR * chunks
        self.priority: dict[Path, float] = {}
        self.figures: dict[Path, tuple[int, float, int]] = {}  # frequency, cost, times computed
        self.past: list[Path] = []  # evicted, the latest last

    def ask(self, path: Path) -> list[Path]:
        """Serves a request; returns what is evicted: as much as it needs, or nothing."""
        nodes = [path[: end + 1] for end in range(len(path))]
        new = [node for node in nodes if node not in self.priority]
        left, gone = dict(self.priority), list[Path]()
        while len(left) + len(new) > self.chunks and (leaves := self.leaves(left, nodes)):
            gone.append(min(leaves, key=lambda node: (left[node], -len(node), key_of(node))))
            del left[gone[-1]]
        if len(left) + len(new) > self.chunks:
            new, gone, left = [], [], self.priority
        self.clock = max([self.clock, *(self.priority[node] for node in gone)])
        self.priority = left
        for node in gone:
            self.past.append(node)
            for forgotten in self.past[: -self.remembered]:
                del self.figures[forgotten]
            self.past = self.past[-self.remembered :]
        self.past = [node for node in self.past if node not in new]
        cached, computed = CHUNK_TOKENS * (len(nodes) - len(new)), CHUNK_TOKENS * len(new)
        for node in nodes:
            frequency, cost, times = self.figures.get(node, (0, 0.0, 0))
            if node in new:
                cost, times = cost + self.prefill_ms(cached, computed) / computed, times + 1
            if node in new or node in left:
                self.figures[node] = frequency + 1, cost, times
                self.priority[node] = self.clock + (frequency + 1) * cost / times
        return gone

    def leaves(self, left: Iterable[Path], asked: Sequence[Path]) -> list[Path]:
        """Returns the nodes without a child that are not asked for."""
        parents = {node[:-1] for node in left}
        return [node for node in left if node not in parents and node not in asked]


@pytest.mark.vllm
@given(
    st.sampled_from([3, 9]),
    st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=4), max_size=60),
)
@example(5, [[1, 2], [3, 4], [5], [6], [7]])  # of equal chunks, the last of a prompt goes first
@example(3, [[1, 0], [0] * 3, [0, 0, 1], [0, 1, 0], [0, 2, 0], [2, 0, 0], [1, 0, 0]])  # forgotten
def test_it_evicts_what_algorithm_1_by_the_letter_evicts(
    pgdsf: Any, chunks: int, asked: list[list[int]]
) -> None:
    tier, plain = Tier(chunks), PlainPgdsf(chunks, pgdsf)
    for path in asked:
        tier.ask(*path)
        assert sorted(tier.evicted()) == sorted(plain.ask(tuple(path)))
        nodes = tier.policy._nodes
        assert {path_of(key): pytest.approx(nodes[key].priority) for key in nodes} == plain.priority
        for node in nodes.values():
            assert node.children == sum(one.parent is node for one in nodes.values())


@pytest.mark.vllm
def test_times_between_the_measured_points_are_interpolated_bilinearly(pgdsf: Any) -> None:
    """Algorithm 1, lines 5 to 9."""
    assert pgdsf.prefill_ms(256, 128) == 393.8
    low, high = (117.2 + 147.5) / 2, (336.4 + 393.8) / 2
    assert pgdsf.prefill_ms(128, 80) == pytest.approx((low + high) / 2)
    assert pgdsf.prefill_ms(0, 2048) == pytest.approx(2921.5 + 2 * (2921.5 - 1351.9))


@pytest.mark.vllm
def test_vllm_loads_the_policies_that_there_are_and_refuses_others(pgdsf: Any) -> None:
    from vllm.v1.kv_offload.cpu.policies.factory import CachePolicyFactory

    for policy in ("lru", "arc"):  # here: another process imports vLLM for ten seconds
        CachePolicyFactory.get_cache_policy_cls(policy, KV_POLICY.stem)(cache_capacity=1)
    check_kv_host_policy("pgdsf")
    with pytest.raises(ConfigError, match="has no attribute 'pgdfs'"):
        check_kv_host_policy("pgdfs")
