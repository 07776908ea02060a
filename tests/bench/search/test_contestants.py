"""Every contestant finds what scoring every probed row finds."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.core.memory import memory_of
from bench.search.child import windows_of
from bench.search.contestants.carpool import GROWTH_BYTES, Carpool, budget_for
from bench.search.contestants.contestant import Contestant, FoundRows, SearchData
from bench.search.contestants.mapped_rows import MappedRows
from bench.search.contestants.registry import ENTRIES, chosen_names
from bench.search.reference import exact_answers
from carpool.errors import ConfigError
from searcher.shard.gpu import GpuShard
from tests.bench.helpers import unit_rows


def search_all(contestant: Contestant, data: SearchData) -> list[list[int]]:
    found: dict[int, FoundRows] = {}
    for asked in windows_of(data, 7):
        for result in contestant.search(asked):
            assert result.number not in found
            found[result.number] = result
    return [found[number].rows.tolist() for number in range(len(data.queries))]


def shared(found: list[list[int]], data: SearchData) -> float:
    """How many of the best rows of the probed clusters were found, the mean."""
    best = exact_answers(data).of_probed.rows[:, : data.top_k].tolist()
    return np.mean([len(set(one) & set(other)) for one, other in zip(found, best, strict=True)])


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.gpu if entry.needs_gpu else ())
        for name, entry in ENTRIES.items()
    ],
)
def test_it_finds_what_scoring_every_probed_row_finds(
    name: str, data: SearchData, tmp_path: Path
) -> None:
    entry, data = ENTRIES[name], replace(data, prepared_dir=tmp_path)
    if entry.is_prepared:
        (tmp_path / name).mkdir()
        entry.load().prepare(name, data, tmp_path / name)
    contestant = entry.load().make(name)
    contestant.open(data)
    try:
        found = [search_all(contestant, data) for _ in range(2)]
    finally:
        contestant.close()
    assert found[0] == found[1]
    if entry.is_exact:
        best = exact_answers(data).of_probed.rows[:, : data.top_k]
        assert found[0] == best.tolist()
    assert shared(found[0], data) > 0.97 * data.top_k


def test_a_hot_shard_holds_what_earlier_questions_probe(
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
        found = search_all(contestant, data)
    finally:
        contestant.close()
    assert shared(found, data) > 0.97 * data.top_k
    assert metric("probes_total", side="shard") > 0
    assert metric("probes_total", side="codes") > 0


def test_the_budget_is_what_the_process_leaves() -> None:
    assert budget_for(None, 1000) == 2000 + (64 << 20)
    limit = memory_of(os.getpid()).resident_bytes + GROWTH_BYTES + (1 << 30)
    assert 0 < budget_for(limit, 1 << 40) < 1 << 31
    with pytest.raises(MemoryError, match="hold no cluster"):
        budget_for(1 << 20, 1000)


def test_contestants_are_chosen_by_name() -> None:
    assert chosen_names(None) == (*tuple(ENTRIES)[:3], "faiss-memory", "faiss-rabitq")
    assert chosen_names("faiss-rabitq, carpool*") == ("faiss-rabitq", *tuple(ENTRIES)[:3])
    with pytest.raises(ConfigError, match="no contestant 'carpol'"):
        chosen_names("carpol")


@pytest.mark.parametrize("dimension", [16, 1500])  # many to a page, and two pages each
def test_candidates_are_ranked_by_exact_rows_of_a_file(dimension: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    rows, queries = unit_rows(rng, 500, dimension), unit_rows(rng, 30, dimension)
    rows[9] = rows[3]
    rows.tofile(tmp_path / "rows.f32")
    candidates = np.stack([rng.permutation(500)[:40] for _ in queries])
    candidates[3] = -1
    candidates[5, 2:] = -1
    candidates[7, 0] = 499  # the last row: its last page is not whole
    candidates[8, :3] = [9, 3, -1]
    found = list(MappedRows(tmp_path / "rows.f32", dimension).rank(queries, candidates, 10))
    for query, taken, best in zip(queries, candidates, found, strict=True):
        there = np.sort(taken[taken >= 0])
        order = np.argsort(-(rows[there] @ query), kind="stable")
        assert best.tolist() == there[order][:10].tolist()
    assert [len(best) for best in found[3:6]] == [0, 10, 2]
