"""The bench of paged codes: it reads what the planner plans, and says so."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from bench.simulator.paged_codes import PagedCodesOptions, run
from carpool.errors import ConfigError
from tests.bench.retrieval.conftest import questions, tiny_index

__all__ = ["questions", "tiny_index"]


def test_what_is_read_is_what_the_simulation_reads(
    tiny_index: Path, questions: Path, tmp_path: Path
) -> None:
    options = PagedCodesOptions(
        nprobe=3, codec="rabitq4", shares=(0.5, 1.0), windows=(20,), queries=60
    )
    run(tiny_index, questions, options, tmp_path / "report.json")
    report = msgspec.json.decode((tmp_path / "report.json").read_bytes())
    for row in report["results"]:
        # In so small an index many scans are repeated for more rows, and read again.
        assert 0 < row["simulated_bytes"] <= row["read_bytes"]
    half, whole = report["results"]
    assert whole["simulated_bytes"] < half["simulated_bytes"]
    assert whole["read_bytes"] == whole["simulated_bytes"]  # nothing leaves, so all is read once


def test_searchers_that_share_clusters_read_what_is_simulated_and_find_the_same_ids(
    tiny_index: Path, questions: Path, tmp_path: Path
) -> None:
    options = PagedCodesOptions(
        nprobe=3, codec="rabitq4", shares=(0.5,), windows=(20,), queries=60, searchers=(1, 3)
    )
    run(tiny_index, questions, options, tmp_path / "report.json")
    report = msgspec.json.decode((tmp_path / "report.json").read_bytes())
    one, three = report["results"]
    assert (one["searchers"], three["searchers"]) == (1, 3)
    assert (one["other_ids"], three["other_ids"]) == (0, 0)
    assert three["simulated_bytes"] < one["simulated_bytes"]
    assert three["simulated_bytes"] <= three["read_bytes"]


def test_an_index_without_these_codes_is_refused(tiny_index: Path, questions: Path) -> None:
    options = PagedCodesOptions(nprobe=3, codec="rabitq9", shares=(0.5,), windows=(5,), queries=5)
    with pytest.raises(ConfigError, match="no codes rabitq9"):
        run(tiny_index, questions, options, None)
