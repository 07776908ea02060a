"""`carpool bench paper cagr`: the figure from a tiny index, and the algorithms by dumb ones."""

from __future__ import annotations

from collections import Counter
from itertools import combinations
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.papers.cagr import figures
from bench.papers.cagr.figures import static_oracle_bytes
from bench.papers.cagr.published import PublishedSearch
from bench.papers.options import CagrOptions
from carpool.errors import ConfigError
from tests.bench.helpers import unit_rows, write_embedded

SIZES = [50 + 37 * cluster % 101 for cluster in range(20)]


def probes_of(seed: int, queries: int, nprobe: int) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    popular = rng.permuted(np.tile(np.arange(20), (queries, 1)), axis=1)
    return np.sort(popular[:, :nprobe]).tolist()


def a_search(theta: float = 2.0, *, prefetches: bool = False) -> PublishedSearch:
    return PublishedSearch(SIZES, entries=4, theta=theta, prefetches=prefetches)


def test_the_figure_has_every_method_and_an_oracle(
    tiny_index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(3)
    for name in figures.DATASETS:
        write_embedded(tmp_path, name, [], unit_rows(rng, 300, 16))
    options = CagrOptions(index=tiny_index, data=tmp_path, json_file=tmp_path / "report.json")
    with pytest.raises(ConfigError, match="name one of nlist 100"):
        figures.run(options)
    for name, value in (("NPROBE", 3), ("ENTRIES", 4)):
        monkeypatch.setattr(figures, name, value)
    figures.run(options)
    found = msgspec.json.decode((tmp_path / "report.json").read_bytes())["results"]
    assert tuple(found) == figures.DATASETS
    for rows in found.values():
        mb = {name: row["mb_a_query"] for name, row in rows.items()}
        assert min(mb.values()) > 0
        assert mb["Carpool"] < mb["EdgeRAG"], "at most once a batch"
        assert rows["EdgeRAG"]["prefetched"] == 0 < rows["CaGR, theta 0.5"]["prefetched"] < 1
        assert rows["CaGR, theta 0.1"]["groups"] < rows["EdgeRAG"]["groups"]


def test_edgerag_reads_what_a_dumb_cache_of_entries_reads() -> None:
    """Latency x count, the lowest leaves; never more than so many entries of any size (4.1)."""
    asked = probes_of(1, 200, 1)
    counts: Counter[int] = Counter()
    resident: set[int] = set()
    hits, read_bytes = [], 0
    for (cluster,) in asked:
        counts[cluster] += 1
        hits.append(int(cluster in resident))
        read_bytes += SIZES[cluster] * (cluster not in resident)
        if cluster not in resident and len(resident) == 4:
            resident.remove(min(resident, key=lambda other: (SIZES[other] * counts[other], other)))
        resident.add(cluster)
    search = a_search()
    search.search(asked)
    assert search.hits == hits and 0 < sum(hits) < len(hits)
    assert (search.bytes_read, search.groups) == (read_bytes, 200)
    assert len(search.cache.held) == 4


def test_the_prefetch_between_groups_makes_hits_and_reads_no_less() -> None:
    """ "Prefetching the clusters of following query immediately after the vector search" (3.1)."""
    asked = probes_of(2, 80, 3)
    ahead, alone = a_search(0.9, prefetches=True), a_search(0.9)
    for search in (ahead, alone):
        search.search(asked)
    assert ahead.groups == alone.groups > 10
    assert sum(ahead.hits) > sum(alone.hits)
    assert ahead.bytes_read < alone.bytes_read / 2
    assert ahead.bytes_read + ahead.prefetched_bytes >= 0.9 * alone.bytes_read


def test_batches_have_20_to_100_queries() -> None:
    """ "Randomly generating between 20 and 100 queries per batch" (section 4.1)."""
    probes = np.arange(5_000, dtype=np.int32)[:, None]
    cut = list(figures.batches(probes, np.random.default_rng(0)))
    assert np.concatenate(cut).tolist() == probes.tolist()
    lengths = [len(batch) for batch in cut[:-1]]
    assert 20 <= min(lengths) < 30 and 90 < max(lengths) <= 100


# ---- the static oracle, against every fixed set of slices that there is


@given(
    st.lists(
        st.lists(st.integers(0, 2), min_size=2, max_size=2, unique=True), min_size=1, max_size=12
    ),
    st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=3), min_size=3, max_size=3),
    st.integers(0, 50),
    st.integers(1, 5),
)
def test_no_fixed_set_of_slices_reads_less_than_the_static_oracle(
    probes: list[list[int]], slices: list[list[int]], budget: int, window: int
) -> None:
    windows = [probes[start : start + window] for start in range(0, len(probes), window)]
    sizes = np.array([sum(parts) for parts in slices], dtype=np.int64)
    found = static_oracle_bytes(map(np.array, windows), sizes, budget)
    parts = [(cluster, size) for cluster, sizes in enumerate(slices) for size in sizes]
    sets = (
        set(kept)
        for count in range(len(parts) + 1)
        for kept in combinations(range(len(parts)), count)
    )
    read = [
        _read_with_fixed_set(windows, parts, kept)
        for kept in sets
        if sum(parts[number][1] for number in kept) <= budget
    ]
    assert found <= min(read)
    if budget >= sizes.sum():  # all fits: each wanted cluster is read once
        assert found == min(read)


def _read_with_fixed_set(
    windows: list[list[list[int]]], parts: list[tuple[int, int]], kept: set[int]
) -> int:
    """Searches window by window, from an empty memory: reads what is wanted and not there, then
    forgets what is not kept.
    """
    memory: set[int] = set()
    read = 0
    for window in windows:
        clusters = {cluster for query in window for cluster in query}
        wanted = {number for number, (cluster, _) in enumerate(parts) if cluster in clusters}
        read += sum(parts[number][1] for number in wanted - memory)
        memory = (memory | wanted) & kept
    return read


def test_the_oracle_of_a_small_trace() -> None:
    # Cluster 0 is wanted three times, 1 twice, 2 and 3 once.
    windows = [np.array(each) for each in ([[0, 1], [0, 2]], [[0, 1], [1, 0]], [[0, 3], [3, 0]])]
    sizes = np.array([10, 20, 5, 1], dtype=np.int64)
    assert static_oracle_bytes(windows, sizes, 0) == 30 + 40 + 5 + 1
    assert static_oracle_bytes(windows, sizes, 10) == 76 - 20
    assert static_oracle_bytes(windows, sizes, 20) == 76 - 20 - 10  # half of cluster 1 fits
