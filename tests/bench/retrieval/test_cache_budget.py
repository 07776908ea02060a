"""Limiting what caches may hold instead of whole processes: the same bytes for all, the oracle too,
and the report says so.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from bench.cli import app
from bench.data.evaluation import DATA_VARIABLE
from bench.retrieval.arrivals import ClosedLoop, monotonic_us
from bench.retrieval.blocks import Run, Tell
from bench.retrieval.command import Wishes, parse_contestants, search
from bench.retrieval.contestant import ContestantError, Counters, Dataset, Limits
from bench.retrieval.contestants.carpool import BESIDE_BYTES, cache_budget
from bench.retrieval.dataset import open_view
from bench.retrieval.measure import measure
from bench.retrieval.oracles import oracle_static, window_counts
from bench.retrieval.plan import Plan
from bench.retrieval.questions import Asked
from bench.retrieval.registry import ENTRIES, entry
from carpool.errors import ConfigError

HELD = tuple(name for name, found in ENTRIES.items() if found.has_cache_budget)


def plan(tmp_path: Path, index: Path, **wishes: Any) -> Plan:
    values: dict[str, Any] = {
        "indexes": (index,),
        "contestants": ("carpool", "carpool-lfu"),
        "windows": (10,),
        "seeds": 1,
        "queries": 60,
        "nprobe": 3,
        "top_k": 5,
        "memory_share": None,
        "cache_share": 0.5,
        "held_by": "none",
        "threads": 1,
        "open_loop": None,
        "timeout_s": 60.0,
        "out": tmp_path / "out",
        "work": tmp_path / "work",
        "empty_page_cache": False,
        "disk_s": 0.02,
    }
    return Plan(**{**values, **wishes})


def test_a_run_gives_caches_and_oracle_the_same_bytes_and_says_that_processes_were_not_held(
    tmp_path: Path, tiny_index: Path, questions: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wishes = Wishes(
        data=None,
        questions=(questions,),
        baseline="carpool-lfu",
        resume=False,
        plot=False,
        static_max=100.0,
    )
    assert search(plan(tmp_path, tiny_index), wishes, {})
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    budget_bytes = int(open_view(tiny_index).cluster_bytes.sum()) // 2
    assert report["is_memory_held"] is False
    assert report["settings"]["cache_share"] == 0.5
    assert report["indexes"][0]["budget_bytes"] == budget_bytes
    cells = [line for line in report["lines"] if line["type"] == "cell"]
    assert {cell["contestant"] for cell in cells} == {"carpool", "carpool-lfu"}
    for cell in cells:
        assert (cell["status"], cell["limit_bytes"], cell["cache_bytes"]) == (
            "ok",
            None,
            budget_bytes,
        )
        assert 0 < cell["measured"]["closed"]["usage"]["own"]["cache_bytes"] <= budget_bytes
    (static,) = [line for line in report["lines"] if line.get("name") == "oracle-static"]
    assert static["found"]["kept_bytes"] <= budget_bytes
    for row in report["summary"]["rows"]:
        assert row["to_oracles"]["oracle-static"]["bytes_read"]["median"] > 0
    (promise,) = [promise for promise in report["promises"] if "best fixed set" in promise]
    assert report["promises"][promise] is True
    said = " ".join(capsys.readouterr().out.split())
    assert (
        "each cache, reads under way included, had 50.0% of the clusters' bytes "
        f"({budget_bytes / 1e6:,.1f} MB)" in said
    )
    assert "processes were not held to a limit" in said
    assert f"holds {promise}" in said


@pytest.mark.parametrize(
    "name", ["carpool", "carpool-lfu", "carpool-query-by-query", "cagr-best-greedy"]
)
def test_the_memory_for_clusters_never_holds_more_than_its_budget(
    name: str, tiny_index: Path, dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    from searcher.memory.arena import Arena

    arenas: list[int] = []
    begin = Arena.__init__

    def noted(arena: Arena, size_bytes: int, block_bytes: int) -> None:
        arenas.append(size_bytes)
        begin(arena, size_bytes, block_bytes)

    monkeypatch.setattr(Arena, "__init__", noted)
    budget_bytes = int(open_view(tiny_index).cluster_bytes.sum()) // 2
    contestant = entry(name).make()
    limits = Limits(memory_bytes=None, cache_bytes=budget_bytes, threads=1, window=7)
    contestant.open(replace(dataset, index_dir=tiny_index), limits)
    try:
        loop = ClosedLoop(dataset, range(50), window=7)
        for result in contestant.run(loop):
            loop.answered(result.query)
        counters = contestant.counters()
    finally:
        contestant.close()
    assert arenas == [budget_bytes]  # all clusters lie in the one arena
    assert counters.cache_bytes is not None
    assert (
        budget_bytes - 4096 * 4 < counters.cache_bytes <= budget_bytes
    )  # less than a block is left over
    assert counters.bytes_read is not None
    assert counters.bytes_read > budget_bytes  # so it had to evict


def test_the_budget_is_the_caches_own_or_what_a_process_leaves() -> None:
    def limits(**bytes_max: int | None) -> Limits:
        return Limits(**{"memory_bytes": None, "threads": 1, "window": 1, **bytes_max})  # type: ignore[arg-type]

    assert cache_budget(limits(cache_bytes=12_345), 1_000) == 12_345
    assert cache_budget(limits(), 1_000) == 2_000
    assert cache_budget(limits(memory_bytes=100 << 30), 1_000) == 2_000
    assert cache_budget(limits(memory_bytes=4 << 30), 100 << 30) < (4 << 30) - BESIDE_BYTES
    with pytest.raises(ConfigError, match=r"raise --memory, or .* --cache"):
        cache_budget(limits(memory_bytes=1 << 20), 1_000)


class Greedy:
    """A contestant that has set aside so many bytes, or does not say how many."""

    name = "greedy"

    def __init__(self, cache_bytes: int | None) -> None:
        self.cache_bytes = cache_bytes

    def open(self, dataset: Dataset, limits: Limits) -> None:
        pass

    def run(self, arrivals: Any) -> Any:
        raise AssertionError("it is refused before anything is asked")

    def counters(self) -> Counters:
        return Counters(cache_bytes=self.cache_bytes)

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("cache_bytes", "message"),
    [(1_001, "1001 bytes for clusters, and may take 1000"), (None, "does not say")],
)
def test_a_contestant_that_takes_more_or_does_not_say_is_caught(
    dataset: Dataset, cache_bytes: int | None, message: str
) -> None:
    with pytest.raises(ContestantError, match=message):
        measure(
            Greedy(cache_bytes),
            dataset,
            Limits(memory_bytes=None, cache_bytes=1_000, threads=1, window=8),
            numbers=[0],
            open_numbers=[],
            open_plan=None,
            seed=0,
            spawned_us=monotonic_us(),
            on_answer=lambda _: None,
        )


def test_who_cannot_keep_to_a_cache_budget_is_refused_by_name_and_left_out_by_default(
    tmp_path: Path, tiny_index: Path
) -> None:
    with pytest.raises(ConfigError, match=r"faiss-ondisk, lancedb-rq cannot be held .* --memory"):
        Run(
            plan(tmp_path, tiny_index, contestants=("carpool", "faiss-ondisk", "lancedb-rq")),
            [Asked(vectors=np.eye(16, dtype=np.float32), files=())],
            Tell(),
        )
    assert parse_contestants(None, with_cache_budget=True) == HELD
    assert not any(name.startswith(("faiss", "lancedb")) for name in HELD)
    assert {
        name for name in ENTRIES if name.startswith(("carpool", "cagr-best", "cagr-literal"))
    } <= set(HELD)


def test_the_command_says_who_is_left_out(
    tiny_index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(DATA_VARIABLE, raising=False)
    asked = ["search", "--index", str(tiny_index), "--cache", "0.1"]
    told = CliRunner().invoke(app, asked)  # it then misses the questions
    assert "left out, since --cache cannot hold them: faiss-memory, faiss-ondisk" in told.output
    assert isinstance(told.exception, ConfigError)
    assert "left out" not in CliRunner().invoke(app, [*asked, "--contestants", "carpool"]).output
    assert "left out" not in CliRunner().invoke(app, asked[:3]).output


def test_one_thing_is_limited_and_not_two_or_none(tmp_path: Path, tiny_index: Path) -> None:
    for shares in (
        {"memory_share": 0.4, "cache_share": 0.1},
        {"memory_share": None, "cache_share": None},
    ):
        with pytest.raises(ConfigError, match="--memory or --cache, one of the two"):
            plan(tmp_path, tiny_index, **shares)
    told = CliRunner().invoke(
        app, ["search", "--index", str(tiny_index), "--memory", "0.4", "--cache", "0.1"]
    )
    assert isinstance(told.exception, ConfigError)


def test_a_promise_about_carpool_needs_carpool(
    tmp_path: Path, tiny_index: Path, questions: Path
) -> None:
    wishes = Wishes(
        data=None, questions=(questions,), baseline=None, resume=False, plot=False, static_max=0.9
    )
    with pytest.raises(ConfigError, match="--static-max is what carpool is held to"):
        search(plan(tmp_path, tiny_index, contestants=("carpool-lfu",)), wishes, {})


def test_the_static_oracle_keeps_exactly_the_budget_where_more_is_wanted_again() -> None:
    counts = window_counts(np.array([[0, 1], [0, 1]], dtype=np.int32), 1, 2)
    sizes = np.array([1_000, 1_000], dtype=np.int64)
    assert oracle_static(counts, sizes, 1_500).kept_bytes == 1_500
    assert oracle_static(counts, sizes, 5_000).kept_bytes == 2_000


def test_ours_takes_part_in_every_combination() -> None:
    made = {name: vars(entry(name).make()) for name in ENTRIES if name.startswith("carpool")}
    ways = {
        (
            found["_query_by_query"] is not None,
            found["_horizon_windows"] > 0,
            (found["_query_by_query"] or found["_settings"].get("prefetch", "overlapped"))
            != "none",
        )
        for found in made.values()
    }
    # Reading ahead takes a horizon.
    assert ways == {
        (is_by_query, *knows)
        for is_by_query in (False, True)
        for knows in ((True, True), (True, False), (False, False))
    }
    policies = {
        found["_settings"].get("cache_policy", "farthest_next_use") for found in made.values()
    }
    from searcher.plan.eviction.policies import POLICY_NAMES

    assert policies == set(POLICY_NAMES)
