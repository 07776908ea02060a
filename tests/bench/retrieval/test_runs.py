"""Whole runs on a tiny index: real processes, each in a cgroup where root is."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from bench.micro.disk import Read, measure_disk
from bench.retrieval import registry
from bench.retrieval.arrivals import monotonic_us
from bench.retrieval.blocks import Run, Tell, order_of
from bench.retrieval.cells import CELLS_NAME, Cell, CellFile
from bench.retrieval.child import DatasetFiles, Request, decode_request, encode_request
from bench.retrieval.command import Wishes, parse_contestants, parse_windows, search
from bench.retrieval.contestant import Arrivals, ContestantError, Counters, Dataset, Limits, Result
from bench.retrieval.dataset import choose_questions, index_for, open_view
from bench.retrieval.kernel import disk_times, drop_page_cache, process_read_bytes
from bench.retrieval.measure import OpenLoopPlan, measure
from bench.retrieval.plan import Plan
from bench.retrieval.processes import run_child
from bench.retrieval.questions import question_paths, read_asked
from carpool.errors import ConfigError

BENCH = """
import sys, msgspec
from pathlib import Path
from bench.retrieval.plan import Plan
from bench.retrieval.command import Wishes, search
plan = msgspec.json.decode(
    Path(sys.argv[1]).read_bytes(), type=Plan, dec_hook=lambda kind, value: kind(value)
)
questions = (Path(sys.argv[2]),)
wishes = Wishes(data=None, questions=questions, baseline=None, resume=False, plot=False)
search(plan, wishes, {})
"""
FAISS = ("faiss-memory", "faiss-ondisk", "faiss-ondisk-batched")


def plan(tmp_path: Path, index: Path, **wishes: Any) -> Plan:
    values: dict[str, Any] = {
        "indexes": (index,),
        "contestants": FAISS,
        "windows": (10,),
        "seeds": 1,
        "queries": 40,
        "nprobe": 3,
        "top_k": 5,
        "memory_share": 10_000.0,
        "held_by": "none",
        "threads": 1,
        "open_loop": None,
        "timeout_s": 60.0,
        "out": tmp_path / "out",
        "work": tmp_path / "work",
        "empty_page_cache": False,  # not of the machine that other tests run on
        "disk_s": 0.02,
    }
    return Plan(**{**values, **wishes})


def wishes(questions: Path, *, resume: bool = False) -> Wishes:
    return Wishes(data=None, questions=(questions,), baseline=None, resume=resume, plot=False)


@pytest.mark.slow
def test_faiss_answers_alike_in_memory_and_on_disk_and_the_report_says_so(
    tmp_path: Path, tiny_index: Path, questions: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = plan(tmp_path, tiny_index)
    assert search(chosen, wishes(questions), {})
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["schema_version"] == 1
    assert report["is_memory_held"] is False
    assert report["indexes"][0]["row_count"] == 400
    rows = {row["contestant"]: row for row in report["summary"]["rows"]}
    assert list(rows) == [*FAISS, "oracle-window", "oracle-static"]
    for name in FAISS:
        assert rows[name]["agreement"]["different"] == 0
        assert rows[name]["agreement"]["same"] + rows[name]["agreement"]["tied"] == 40
        assert rows[name]["figures"]["queries_per_s"]["median"] > 0
    assert rows["faiss-ondisk"]["to_baseline"]["queries_per_s"]["median"] == 1
    assert "memory was not held" in capsys.readouterr().out

    # Going on runs nothing again, and adds what is new.
    before = (tmp_path / "out" / CELLS_NAME).read_bytes()
    with pytest.raises(ConfigError, match="--resume"):
        search(chosen, wishes(questions), {})
    assert search(chosen, wishes(questions, resume=True), {})
    assert (tmp_path / "out" / CELLS_NAME).read_bytes() == before
    more = msgspec.structs.replace(chosen, windows=(10, 20), contestants=("faiss-memory",))
    assert search(more, wishes(questions, resume=True), {})
    lines = CellFile(tmp_path / "out" / CELLS_NAME).read(
        Run(more, [read_asked([questions])], Tell()).settings_id
    )
    assert sum(isinstance(line, Cell) for line in lines) == 4


def test_in_a_cgroup_the_peak_is_known_and_too_little_memory_is_a_result(
    tmp_path: Path, tiny_index: Path, questions: Path, held_by: str
) -> None:
    vectors_bytes = 400 * 16 * 4
    share = (8 << 20) / vectors_bytes  # less than NumPy and FAISS take
    chosen = plan(
        tmp_path,
        tiny_index,
        held_by=held_by,
        contestants=("faiss-memory", "faiss-ondisk"),
        memory_share=share,
    )
    assert search(chosen, wishes(questions), {})
    cells = {
        cell["contestant"]: cell
        for cell in json_lines(tmp_path / "out" / CELLS_NAME)
        if cell["type"] == "cell"
    }
    assert cells["faiss-memory"]["status"] == "ok"
    assert cells["faiss-memory"]["held"]["peak_bytes"] > 1 << 20
    assert cells["faiss-ondisk"]["status"] == "out of memory"
    assert "killed it at its limit" in cells["faiss-ondisk"]["error"]


def json_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def _files(tiny_index: Path, folder: Path) -> DatasetFiles:
    return DatasetFiles(
        index_dir=tiny_index,
        prepared_dir=folder,
        folder=folder,
        dimension=16,
        nlist=8,
        row_count=400,
        top_k=5,
    )


def _request(tiny_index: Path, folder: Path) -> Request:
    limits = Limits(memory_bytes=None, threads=1, window=5)
    return Request(
        kind="run",
        contestant="faiss-ondisk",
        dataset=_files(tiny_index, folder),
        limits=limits,
        numbers=[0],
    )


def test_a_request_comes_back_as_it_was(tiny_index: Path, tmp_path: Path) -> None:
    request = _request(tiny_index, tmp_path)
    assert decode_request(encode_request(request)) == request


def test_a_process_that_takes_too_long_or_fails_is_told(tiny_index: Path, tmp_path: Path) -> None:
    request = _request(tiny_index, tmp_path)
    slow = run_child(request, tmp_path / "slow", held_by="none", limit_bytes=None, timeout_s=0.0)
    assert slow.status == "timed out"
    failed = run_child(request, tmp_path / "failed", held_by="none", limit_bytes=None, timeout_s=60)
    assert failed.status == "failed"  # there are no queries in that folder
    assert "queries.npy" in failed.outcome.error
    assert failed.outcome.is_bug


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_whatever_ends_the_bench_ends_the_contestant(
    tmp_path: Path, tiny_index: Path, questions: Path, how: signal.Signals
) -> None:
    # It doubles its rate for longer than this test takes.
    chosen = plan(
        tmp_path,
        tiny_index,
        contestants=("faiss-memory",),
        windows=(1,),
        open_loop=OpenLoopPlan(p99_max_ms=60_000, queries_min=100, total_s=600),
    )
    (tmp_path / "plan.json").write_bytes(msgspec.json.encode(chosen, enc_hook=str))
    program = [sys.executable, "-c", BENCH, str(tmp_path / "plan.json"), str(questions)]
    bench = subprocess.Popen(program, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _until((chosen.out / "cells" / "0-1-faiss-memory" / "request.json").exists)
        child = _until(lambda: _children(bench.pid))
        bench.send_signal(how)
        bench.wait(20)
        _until(lambda: not any(Path("/proc", pid).exists() for pid in child))
    finally:
        bench.kill()
        bench.wait()


def _children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def _until(found: Callable[[], Any], timeout_s: float = 60.0) -> Any:
    deadline_s = time.monotonic() + timeout_s
    while not (value := found()):
        assert time.monotonic() < deadline_s, "it did not come about"
        time.sleep(0.02)
    return value


class Echo:
    """Finds the queries' own numbers; on wish it forgets one, or answers one twice."""

    name = "echo"

    def __init__(self, fault: str = "") -> None:
        self.fault = fault

    def open(self, dataset: Dataset, limits: Limits) -> None:
        self.windows = 0

    def run(self, arrivals: Arrivals) -> Iterator[Result]:
        while not arrivals.ended:
            if (window := arrivals.take()) is None:
                continue
            self.windows += 1
            for at, query in enumerate(window.queries):
                if self.fault == "forgets" and arrivals.ended and not at:
                    continue
                yield Result(arrivals.now_us(), query.number, 0, np.array([query.number]), True)
                if self.fault == "repeats":
                    yield Result(arrivals.now_us(), query.number, 0, np.array([query.number]), True)

    def counters(self) -> Counters:
        return Counters(others={"windows": float(self.windows)} if hasattr(self, "windows") else {})

    def close(self) -> None:
        pass


def _measure(contestant: Echo, dataset: Dataset, open_plan: OpenLoopPlan | None = None) -> Any:
    return measure(
        contestant,
        dataset,
        Limits(memory_bytes=None, threads=1, window=8),
        numbers=list(range(20)),
        open_numbers=list(range(20, 50)),
        open_plan=open_plan,
        seed=0,
        spawned_us=monotonic_us(),
        on_answer=lambda _: None,
    )


def test_every_answer_is_measured_and_kept(dataset: Dataset) -> None:
    measured, ids = _measure(Echo(), dataset)
    assert (measured.closed.queries, measured.closed.windows) == (20, 3)
    assert measured.closed.usage.own.others == {"windows": 3.0}
    assert measured.closed.latency_ms.count == 20
    assert ids[:20, 0].tolist() == list(range(20))
    assert (ids[20:] == -1).all()


@pytest.mark.parametrize(
    ("fault", "message"), [("forgets", "19 of 20 queries"), ("repeats", "nobody waits for")]
)
def test_a_contestant_that_breaks_the_rules_is_caught(
    dataset: Dataset, fault: str, message: str
) -> None:
    with pytest.raises(ContestantError, match=message):
        _measure(Echo(fault), dataset)


def test_a_rate_is_sought_between_those_that_hold_and_those_that_do_not(dataset: Dataset) -> None:
    easy = OpenLoopPlan(p99_max_ms=60_000, try_s=0.001, queries_min=5, tries_max=2)
    measured, _ = _measure(Echo(), dataset, easy)
    assert measured.open_loop.found.held_per_s > 0
    assert measured.open_loop.found.failed_per_s is None
    assert measured.open_loop.found.tries == 2
    hopeless = OpenLoopPlan(p99_max_ms=0.0, try_s=0.001, queries_min=5, tries_max=2)
    measured, _ = _measure(Echo(), dataset, hopeless)
    assert measured.open_loop.found.held_per_s == 0
    assert all(not tried.held and tried.queries < 30 for tried in measured.open_loop.tries)
    # The closed loop asked others; of 30 questions for three rates of 12, the third asks six again.
    many = OpenLoopPlan(p99_max_ms=60_000, try_s=0.0, queries_min=12, tries_max=3)
    measured, _ = _measure(Echo(), dataset, many)
    assert [tried.reused for tried in measured.open_loop.tries] == [0, 0, 6]


def test_each_block_has_an_order_of_its_own_in_which_neighbours_change() -> None:
    orders = [order_of("abcdef", seed, window) for seed in range(20) for window in (20, 100)]
    assert all(sorted(order) == list("abcdef") for order in orders)
    assert orders[:2] == [order_of("abcdef", 0, 20), order_of("abcdef", 0, 100)]
    before_a = {order[order.index("a") - 1] for order in orders if order[0] != "a"}
    assert before_a == set("bcdef")
    assert {order[0] for order in orders} == set("abcdef")


def test_questions_are_distinct_and_ordered_by_the_seed() -> None:
    vectors = np.repeat(np.eye(16, dtype=np.float32), 2, axis=0)
    chosen = choose_questions(vectors, 16, 10, seed=1)
    assert len(np.unique(chosen.vectors, axis=0)) == len(chosen.vectors) == 16
    assert chosen.closed_numbers == list(range(10))
    assert chosen.open_numbers == list(range(16))  # too few are left: all are asked again
    many = np.random.default_rng(0).standard_normal((510, 16)).astype(np.float32)
    assert choose_questions(many, 16, 10, seed=1).open_numbers == list(range(10, 510))
    assert choose_questions(many, 16, 11, seed=1).open_numbers == list(range(510))
    assert not np.array_equal(chosen.vectors, choose_questions(vectors, 16, 10, seed=2).vectors)
    with pytest.raises(ConfigError, match="16 distinct questions, and --queries asks for 17"):
        choose_questions(vectors, 16, 17, seed=0)
    with pytest.raises(ConfigError, match="made by another model"):
        choose_questions(vectors, 32, 1, seed=0)


def test_an_index_is_given_once_or_for_each_seed(tmp_path: Path) -> None:
    assert index_for([tmp_path], 2) == tmp_path
    assert index_for([tmp_path / "0", tmp_path / "1"], 1) == tmp_path / "1"
    with pytest.raises(ConfigError, match="once for each seed"):
        index_for([tmp_path / "0", tmp_path / "1"], 2)


def test_names_and_sizes_are_checked(tmp_path: Path) -> None:
    assert parse_windows("20,100") == (20, 100)
    for text in ("", "0", "a", "5,5"):
        with pytest.raises(ConfigError, match="--windows"):
            parse_windows(text)
    assert parse_contestants(None) == tuple(registry.ENTRIES)
    assert parse_contestants("faiss-ondisk*,faiss-memory") == (
        "faiss-ondisk",
        "faiss-ondisk-batched",
        "faiss-memory",
    )
    with pytest.raises(ConfigError, match="no contestant 'nobody'"):
        parse_contestants("nobody")
    with pytest.raises(ConfigError, match="CARPOOL_DATA"):
        question_paths((), 1, None, {})
    with pytest.raises(ConfigError, match="no questions at"):
        question_paths([tmp_path / "none.npy"], 1, None, {})


def test_the_view_holds_every_row_once_and_says_where_clusters_lie(tiny_index: Path) -> None:
    view = open_view(tiny_index)
    rows = np.concatenate([cluster.rows for cluster in view.clusters()])
    assert sorted(rows.tolist()) == list(range(400))
    assert view.vectors_bytes == 400 * 16 * 4
    assert [read.size_bytes for read in view.reads] == view.cluster_bytes.tolist()
    assert all(read.offset_bytes % 4096 == read.size_bytes % 4096 == 0 for read in view.reads)
    with pytest.raises(ConfigError):
        open_view(tiny_index / "nothing")


@pytest.mark.parametrize("into_bytes", [0, 1, 1 << 20])
def test_the_kernel_counts_what_a_direct_read_reads(tiny_index: Path, into_bytes: int) -> None:
    reads = open_view(tiny_index).reads
    before = process_read_bytes()
    try:
        figures = measure_disk(reads, seed=0, depths=(1, 2), duration_s=0.02, into_bytes=into_bytes)
    except ConfigError as error:
        pytest.skip(str(error))
    counted = process_read_bytes() - before
    assert [rate.depth for rate in figures.rates] == [1, 2]
    assert all(rate.bytes_per_s > 0 for rate in figures.rates)
    if disk_times(tiny_index) is not None:  # a disk, and not memory that is mounted
        assert counted == pytest.approx(
            sum(rate.bytes_read for rate in figures.rates), rel=0.02, abs=1 << 20
        )


def test_a_disk_cannot_be_measured_by_nothing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no reads"):
        measure_disk((), seed=0)
    with pytest.raises(ConfigError, match="cannot measure the disk"):
        measure_disk([Read(path=tmp_path / "none", offset_bytes=0, size_bytes=4096)], seed=0)


def test_memory_is_not_measured_as_if_it_were_a_disk(memory_folder: Path) -> None:
    path = memory_folder / "a.seg"
    path.write_bytes(bytes(4096))
    with pytest.raises(
        ConfigError,
        match=r"a\.seg: its file system is tmpfs, which keeps files in memory; put the index on a",
    ):
        measure_disk([Read(path=path, offset_bytes=0, size_bytes=4096)], seed=0)


def test_dropping_the_page_cache_says_how(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * 10_000)
    assert drop_page_cache([tmp_path], everything=False) == "files"
