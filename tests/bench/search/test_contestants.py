"""Every contestant finds what scoring every row finds, at its highest setting."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from bench.data.exact import exact_answers
from bench.search.child import tune
from bench.search.contestants.carpool import GROWTH_BYTES, Carpool, budget_for
from bench.search.contestants.contestant import TOP_K, SearchData, chunks_of, ladder
from bench.search.contestants.mapped_rows import MappedRows
from bench.search.contestants.registry import ENTRIES, chosen_names
from carpool.errors import ConfigError
from searcher.shard.gpu import GpuShard
from tests.bench.helpers import unit_rows


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.gpu if name.startswith("gpu-") else ())
        for name in ENTRIES
    ],
)
def test_it_finds_what_scoring_every_row_finds(name: str, data: SearchData) -> None:
    if not find_spec(ENTRIES[name].package):
        pytest.skip(f"{ENTRIES[name].package} is not installed")
    contestant = ENTRIES[name].make()
    best = exact_answers(chunks_of(data.vectors), data.tuning, TOP_K)
    contestant.build(data)
    contestant.open(data)
    try:
        (setting,), most = tune(contestant, data.tuning, best, [0.9])
        found = contestant.search(data.tuning, contestant.settings[-1])
    finally:
        contestant.close()
    assert found.shape == (50, TOP_K)
    assert most == best.recall(found) > 0.97
    assert setting in contestant.settings
    if name == "carpool-exact":
        assert most == 1


def test_carpool_builds_an_index_where_none_is_given(data: SearchData) -> None:
    contestant = Carpool("default")
    alone = replace(data, index=None)
    contestant.build(alone)
    contestant.open(alone)
    try:
        found = contestant.search(data.tuning, 1)
    finally:
        contestant.close()
    assert exact_answers(chunks_of(data.vectors), data.tuning, TOP_K).recall(found) == 1


def test_a_hot_shard_holds_what_tuning_questions_probe(
    data: SearchData, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin: Any = GpuShard.__init__

    def on_the_cpu(shard: GpuShard, numbers: str, **options: object) -> None:
        begin(shard, numbers, **options | {"device": "cpu"})

    monkeypatch.setattr(GpuShard, "__init__", on_the_cpu)
    contestant = Carpool("default", 0.5)
    contestant.open(data)

    def metric(name: str, **labels: str) -> float:
        return contestant.metrics.registry.get_sample_value(f"carpool_shard_{name}", labels) or 0

    try:
        assert metric("bytes") > 0
        contestant.search(data.tuning, 3)
    finally:
        contestant.close()
    assert metric("probes_total", side="shard") > 0
    assert metric("probes_total", side="codes") > 0


def test_the_budget_is_what_the_process_leaves() -> None:
    assert budget_for(None, 1000) == 2000 + (64 << 20)
    limit = psutil.Process().memory_info().rss + GROWTH_BYTES + (1 << 30)
    assert 0 < budget_for(limit, 1 << 40) < 1 << 31
    with pytest.raises(MemoryError, match="cannot hold a cluster"):
        budget_for(1 << 20, 1000)


def test_contestants_are_chosen_by_name() -> None:
    assert chosen_names(None)[:3] == ("carpool", "faiss-memory", "faiss-rabitq")
    assert chosen_names("faiss-rabitq, carpool,carpool") == ("faiss-rabitq", "carpool")
    with pytest.raises(ConfigError, match="no contestant 'carpol'"):
        chosen_names("carpol")


def test_a_ladder_has_each_end_and_no_number_twice() -> None:
    steps = ladder(1, 100)
    assert steps[:4] == (1, 2, 3, 4) and steps[-1] == 100
    assert (np.diff(steps) > 0).all() and len(steps) < 50
    assert ladder(10, 10) == (10,)


@pytest.mark.parametrize("dimension", [16, 1500])  # many to a page, and two pages each
def test_candidates_are_ranked_by_exact_rows_of_a_file(dimension: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    rows, queries = unit_rows(rng, 500, dimension), unit_rows(rng, 30, dimension)
    rows[9] = rows[3]
    np.save(tmp_path / "rows.npy", rows)
    candidates = np.stack([rng.permutation(500)[:40] for _ in queries])
    candidates[3] = -1
    candidates[5, 2:] = -1
    candidates[7, 0] = 499  # the last row: its last page is not whole
    candidates[8, :3] = [9, 3, -1]
    found = [
        best[best >= 0] for best in MappedRows(tmp_path / "rows.npy").rank(queries, candidates)
    ]
    for query, taken, best in zip(queries, candidates, found, strict=True):
        there = np.sort(taken[taken >= 0])
        order = np.argsort(-(rows[there] @ query), kind="stable")
        assert best.tolist() == there[order][:10].tolist()
    assert [len(best) for best in found[3:6]] == [0, 10, 2]
