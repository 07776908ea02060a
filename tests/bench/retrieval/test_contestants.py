"""Every contestant of our own on a tiny index, in one process each: exact, and honest about what it
read.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bench.retrieval.arrivals import ClosedLoop
from bench.retrieval.blocks import Run, Tell
from bench.retrieval.cells import Cell
from bench.retrieval.contestant import Dataset, Limits
from bench.retrieval.contestants.cagr import GroupedExecutor
from bench.retrieval.plan import Plan
from bench.retrieval.questions import read_asked
from bench.retrieval.registry import ENTRIES, entry
from grouper.plan.grouping import PolicyName, grouping_policy
from grouper.plan.order import group_order
from schemas.record import ClusterId
from searcher.executor import Search, SearchGroup

OURS = tuple(name for name in ENTRIES if name.startswith(("edgerag", "cagr-", "carpool")))
IN_CHILDREN = ("cagr-best-greedy", "carpool")


class Joined:
    """An executor that only keeps what joins."""

    def __init__(self) -> None:
        self.groups: list[SearchGroup] = []

    def join(self, group: SearchGroup) -> None:
        self.groups.append(group)


def window(*clusters: tuple[int, ...]) -> SearchGroup:
    searches = tuple(
        Search(
            key=key, vector=np.zeros(4, np.float32), clusters=tuple(map(ClusterId, wanted)), top_k=1
        )
        for key, wanted in enumerate(clusters)
    )
    return SearchGroup(searches=searches, window=7)


@pytest.mark.parametrize(
    ("policy", "groups"),
    [
        # 0 and 1 share half, 1 and 2 share half, 0 and 2 nothing: a chain for Algorithm 1, not for
        # Eq. 3.
        ("greedy", [[0, 1, 2], [3]]),
        ("agglomerative", [[0, 1], [2], [3]]),
        ("per_query", [[0], [1], [2], [3]]),
    ],
)
def test_a_window_is_cut_into_groups_that_know_the_next_query(
    policy: PolicyName, groups: list[list[int]]
) -> None:
    asked = window((0, 1, 2), (1, 2, 3), (2, 3, 4), (9, 8, 7))
    joined = Joined()
    chosen = grouping_policy(policy, jaccard_similarity_min=0.5, linkage="complete")
    GroupedExecutor(joined, chosen, group_order("arrival")).join(asked)  # type: ignore[arg-type]
    assert [[search.key for search in group.searches] for group in joined.groups] == groups
    following = [asked.searches[members[0]].clusters for members in groups[1:]]
    assert [group.next_query for group in joined.groups] == [*following, ()]
    assert {group.window for group in joined.groups} == {7}


@pytest.mark.parametrize("name", OURS)
def test_it_finds_what_scoring_every_probed_row_finds(
    name: str, tiny_index: Path, dataset: Dataset
) -> None:
    from bench.retrieval.dataset import open_view

    vectors = np.empty((dataset.row_count, dataset.dimension), np.float32)
    cluster_of = np.empty(dataset.row_count, np.int64)
    for cluster in open_view(tiny_index).clusters():
        vectors[cluster.rows], cluster_of[cluster.rows] = cluster.vectors, cluster.cluster
    contestant = entry(name).make()
    contestant.open(
        replace(dataset, index_dir=tiny_index), Limits(memory_bytes=None, threads=1, window=7)
    )
    found: dict[int, list[int]] = {}
    try:
        for _ in range(2):  # the second time what was read is there
            found.clear()
            loop = ClosedLoop(dataset, range(50), window=7)
            for result in contestant.run(loop):
                assert result.is_final
                loop.answered(result.query)
                found[result.query] = result.ids.tolist()
        counters = contestant.counters()
    finally:
        contestant.close()
    for number in range(50):
        scores = np.where(
            np.isin(cluster_of, dataset.probes[number]), vectors @ dataset.queries[number], -np.inf
        )
        assert found[number] == np.argsort(-scores, kind="stable")[: dataset.top_k].tolist()
    once = sum(open_view(tiny_index).cluster_bytes)  # all fits
    assert counters.bytes_read == once
    assert counters.cache_misses
    assert counters.cache_hits


@pytest.mark.slow
def test_in_processes_of_their_own_they_agree_with_faiss_and_with_the_kernel(
    tmp_path: Path, tiny_index: Path, questions: Path
) -> None:
    plan = Plan(
        indexes=(tiny_index,),
        contestants=IN_CHILDREN,
        windows=(10,),
        seeds=1,
        queries=60,
        nprobe=3,
        top_k=5,
        memory_share=20_000.0,
        held_by="none",
        threads=1,
        open_loop=None,
        timeout_s=60.0,
        out=tmp_path / "out",
        work=tmp_path / "work",
        empty_page_cache=False,
        disk_s=0.02,
    )
    plan.out.mkdir()
    cells = [
        line
        for line in Run(plan, [read_asked([questions])], Tell()).run()
        if isinstance(line, Cell)
    ]
    assert {cell.contestant: (cell.status, cell.error) for cell in cells} == dict.fromkeys(
        IN_CHILDREN, ("ok", "")
    )
    for cell in cells:
        assert cell.agreement is not None
        assert cell.agreement.same + cell.agreement.tied == 60
        assert cell.bytes_agree
