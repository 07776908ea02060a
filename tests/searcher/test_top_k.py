"""The table of the best results against a sort of everything, and its ties."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from searcher.scoring.top_k import Candidates, TopTable


def scored(cluster: int, slots: list[int], found: list[tuple[int, float, int]]) -> Candidates:
    """`found`: (position in slots, score, row) of each candidate."""
    return Candidates(
        np.array([slots[at] for at, _, _ in found], np.intp),
        np.array([score for _, score, _ in found], np.float32),
        np.array([row for _, _, row in found], np.int64),
        np.full(len(found), cluster, np.int64),
    )


def test_the_table_grows_and_keeps_its_results() -> None:
    table = TopTable()
    slots = [table.add(1) for _ in range(300)]
    assert sorted(slots) == list(range(300))
    table.merge([scored(2, slots, [(at, float(at), at) for at in range(300)])])
    more = [table.add(3) for _ in range(300)]
    assert len(table) == 600
    assert len({*slots, *more}) == 600
    assert [table.best(slot).scores.tolist() for slot in slots] == [
        [float(at)] for at in range(300)
    ]


SCORES = st.one_of(st.sampled_from([0.0, -0.0, 0.5, -0.5]), st.floats(-2, 2, width=32))


@given(
    top_ks=st.lists(st.integers(1, 6), min_size=1, max_size=4),
    clusters=st.lists(st.lists(st.tuples(st.integers(0, 3), SCORES), max_size=15), max_size=6),
    batch=st.integers(1, 3),
    seed=st.integers(0, 1000),
)
def test_merged_candidates_equal_a_sort_of_everything(
    top_ks: list[int], clusters: list[list[tuple[int, float]]], batch: int, seed: int
) -> None:
    generator = np.random.default_rng(seed)
    rows = iter(generator.permutation(1000).tolist())
    table = TopTable()
    slots = [table.add(top_k) for top_k in top_ks]
    everything: dict[int, list[tuple[float, int, int]]] = {slot: [] for slot in slots}
    parts = []
    for cluster, found in enumerate(clusters):
        asked = generator.permutation(slots).tolist()
        mine = [
            (at, float(np.float32(score)), next(rows)) for at, score in found if at < len(asked)
        ]
        for at, score, row in mine:
            everything[asked[at]].append((-score, row, cluster))
        parts.append(scored(cluster, asked, mine))
    for at in range(0, len(parts), batch):
        table.merge(parts[at : at + batch])
    for slot, top_k in zip(slots, top_ks, strict=True):
        best = sorted(everything[slot])[:top_k]
        found_best = table.best(slot)
        assert found_best.rows.tolist() == [row for _, row, _ in best]
        assert found_best.scores.tolist() == [-score for score, _, _ in best]
        assert found_best.clusters.tolist() == [cluster for _, _, cluster in best]
        floor = -best[-1][0] if len(best) == top_k else -np.inf
        assert table.floors(np.array([slot])).tolist() == [floor]
