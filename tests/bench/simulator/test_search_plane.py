"""The simulator beside the searcher's own search plane: the same windows, the same bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from typer.testing import CliRunner, Result

from bench.cli import app
from bench.simulator.search_plane import SearchedPlane, Windows
from carpool.disk.centroids import probe
from carpool.disk.index import OpenIndex, open_index
from carpool.errors import RetryableError
from searcher.open_exact import ExactOptions
from searcher.settings import SearcherSettings
from tests.searcher.helpers import normalised, random_index

NLIST, DIMENSION = 24, 32
PAGE = 4096


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> OpenIndex:
    """24 clusters of about 6 pages."""
    folder = tmp_path_factory.mktemp("simulator") / "index"
    written = random_index(folder, rows=4_000, dimension=DIMENSION, nlist=NLIST, seed=3)
    opened = open_index(written.dir)
    opened.close()
    return opened


def windows_of(index: OpenIndex) -> Windows:
    vectors = normalised(np.random.default_rng(4).standard_normal((160, DIMENSION)))
    return Windows(vectors=vectors, probes=probe(index.centroids, vectors, 4), size=9)


def plane_of(index: OpenIndex, **options: Any) -> SearchedPlane:
    budget_bytes = int(0.4 * sum(extent.size_bytes for extent in index.extents))
    settings = SearcherSettings(budget_bytes=budget_bytes, scoring_threads=1, direct_io="auto")
    return SearchedPlane(index=index, settings=settings, options=ExactOptions(**options))


@pytest.mark.parametrize(
    "options",
    [
        {"prefetch_bytes": 0, "read_ahead_bytes": 1},
        {"prefetch_bytes": 16 * PAGE, "read_ahead_bytes": 24 * PAGE, "slice_bytes_max": 0},
        {"prefetch_bytes": 16 * PAGE, "read_ahead_bytes": 24 * PAGE, "slice_bytes_max": 2 * PAGE},
    ],
)
def test_real_runs_read_the_bytes_of_the_simulator(
    index: OpenIndex, options: dict[str, int]
) -> None:
    plane, windows = plane_of(index, **options), windows_of(index)
    simulated = plane.simulated_bytes(windows)
    assert simulated > sum(extent.size_bytes for extent in index.extents)
    assert [plane.real_bytes(windows) for _ in range(2)] == [simulated] * 2


def test_a_cluster_is_foreseen_in_the_first_window_that_wants_it() -> None:
    probes = np.array([[0, 1], [2, 0], [1, 3], [0, 4], [5, 0]], np.int32)
    windows = Windows(vectors=np.zeros((5, 1), np.float32), probes=probes, size=2)
    assert windows.count == 3
    assert windows.horizon(0) == {1: 1, 3: 1, 0: 1, 4: 1, 5: 2}
    assert windows.horizon(1) == {5: 1, 0: 1}
    assert windows.horizon(2) == {}


def test_a_cluster_that_cannot_be_read_ends_the_comparison_with_its_reason(tmp_path: Path) -> None:
    written = random_index(tmp_path / "index", rows=1_000, dimension=DIMENSION, nlist=4, seed=3)
    written.damage(0)
    opened = open_index(written.dir)
    opened.close()
    with pytest.raises(RetryableError, match=r"not searched whole.*cluster 0"):
        plane_of(opened).real_bytes(windows_of(opened))


@pytest.fixture
def arguments(tmp_path: Path) -> list[str]:
    """Of a run over a tiny index."""
    vectors = normalised(np.random.default_rng(5).standard_normal((80, DIMENSION)))
    np.save(tmp_path / "questions.npy", vectors)
    index = random_index(tmp_path / "index", rows=2_000, dimension=DIMENSION, nlist=12)
    given = {
        "--index": index.dir,
        "--questions": tmp_path / "questions.npy",
        "--queries": 60,
        "--nprobe": 3,
        "--windows": "8,20",
        "--json": tmp_path / "figures.json",
    }
    return ["simulator", *(str(word) for pair in given.items() for word in pair)]


def run(arguments: list[str]) -> Result:
    return CliRunner(env={"COLUMNS": "300"}).invoke(app, arguments)


@pytest.mark.parametrize(("more_bytes", "exit_code"), [(0, 0), (1, 1)])
def test_the_command_ends_with_1_when_a_single_byte_differs(
    arguments: list[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    more_bytes: int,
    exit_code: int,
) -> None:
    real = SearchedPlane.simulated_bytes
    monkeypatch.setattr(
        SearchedPlane, "simulated_bytes", lambda plane, asked: real(plane, asked) + more_bytes
    )
    done = run(arguments)
    assert done.exit_code == exit_code, done.output
    report = msgspec.json.decode((tmp_path / "figures.json").read_bytes())
    for row in report["results"]:
        assert row["real_bytes"] == row["simulated_bytes"] - more_bytes > row["oracle_bytes"] / 2
    assert report["index"]["row_count"] == 2_000


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        (("--queries", "81"), "there are 80 distinct questions"),
        (("--nprobe", "13"), "more than the 12 clusters"),
        (("--budget-share", "0.01"), "budget_bytes"),
    ],
)
def test_options_that_do_not_fit_the_index_are_refused(
    arguments: list[str], changed: tuple[str, str], what: str
) -> None:
    done = run([*arguments, *changed])
    assert what in str(done.exception) + done.output
