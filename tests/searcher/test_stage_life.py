"""The searcher as a stage: credit, revocation, draining, closing, and what stops its start."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from carpool.errors import CarpoolError, ConfigError
from searcher.in_hand import INTAKE_BYTES_MAX
from searcher.passages.open import PASSAGE_BUFFERS_BYTES
from tests.searcher.helpers import Running, SmallIndex, make_group, make_unit, random_index, running
from tests.searcher.stage import Gate, questions


def test_there_is_no_credit_before_the_index_is_open_and_it_says_so(index: SmallIndex) -> None:
    run = running(index)
    assert run.stage.not_ready() == ("the index is being opened",)
    assert run.stage.credit().records == 0
    assert run.stage.credit().size_bytes == 0
    with run:
        run.wait_ready()
        assert run.stage.credit().records == 256
        assert run.stage.not_ready() == ()
    assert run.stage.credit().records == 0


def test_credit_counts_the_groups_and_queries_in_hand_and_their_bytes(
    index: SmallIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(index)
    with running(index, open_reads=gate) as run:
        run.wait_ready()
        for number in range(2):
            run.stage.offer(make_unit(number, make_group(index, questions(1)), size_bytes=1_000), 0)
        gate.arrived.acquire()
        credit = run.stage.credit()
        assert (credit.records, credit.size_bytes) == (254, INTAKE_BYTES_MAX - 2_000)
        run.stage.offer(
            make_unit(2, make_group(index, questions(1)), size_bytes=INTAKE_BYTES_MAX), 0
        )
        assert run.stage.credit().size_bytes == 0
        assert run.stage.tick(0, 5) is None
        monkeypatch.setattr("searcher.in_hand.QUERIES_IN_HAND_MAX", 3)
        assert run.stage.credit().records == 0
        gate.open()
        run.sink.wait_done(3)
        assert run.stage.credit().records > 0


def test_a_revoked_group_is_forgotten_also_while_it_is_searched(index: SmallIndex) -> None:
    gate = Gate(index)
    with running(index, open_reads=gate) as run:
        run.wait_ready()
        for number in range(3):
            run.stage.offer(make_unit(number, make_group(index, questions(2), sequence=number)), 0)
        gate.arrived.acquire()
        run.stage.revoke(frozenset({0, 1}), frozenset())
        assert run.stage.credit().records == 255  # one left
        gate.open()
        run.sink.wait_done(2)
    assert run.sink.parts() == [(2, 0), (2, 1)]


def test_closing_while_a_read_hangs_returns_and_hands_over_nothing_half_done(
    index: SmallIndex,
) -> None:
    gate = Gate(index, held=frozenset({1}))
    run = running(index, open_reads=gate)
    run.stage.start(run.sink)
    run.wait_ready()
    run.stage.offer(make_unit(0, make_group(index, questions(2), clusters=[(0, 1), (0, 1)])), 0)
    gate.arrived.acquire()
    run.stage.close()
    gate.open()
    assert run.sink.dones == []
    assert run.sink.failures == []


def failure_at_start(run: Running) -> CarpoolError:
    run.stage.start(run.sink)
    error = run.sink.wait_failure()
    run.stage.close()
    return error


# ---- what is wrong at start


def test_a_missing_index_is_refused_with_what_to_do(index: SmallIndex, tmp_path: Path) -> None:
    error = failure_at_start(running(replace(index, dir=tmp_path / "nowhere")))
    assert isinstance(error, ConfigError)
    assert "carpool index build" in str(error)


def test_a_budget_below_the_largest_cluster_or_above_the_memory_is_refused_with_what_to_do(
    index: SmallIndex,
) -> None:
    largest = max(extent.size_bytes for extent in index.extents) + PASSAGE_BUFFERS_BYTES
    for budget_bytes, words in ((largest - 1, f"at least {largest}"), (1 << 60, "Set it lower")):
        error = failure_at_start(running(index, budget_bytes=budget_bytes))
        assert isinstance(error, ConfigError)
        assert words in str(error)
    assert f"leaves {(1 << 60) - PASSAGE_BUFFERS_BYTES}" in str(error)


def test_codes_clusters_and_buffers_of_reads_are_the_budget(tmp_path: Path) -> None:
    index = random_index(tmp_path / "index", rows=2000, dimension=32, has_codes=True)
    budget_bytes = 16 << 20
    with running(index, budget_bytes=budget_bytes) as run:
        run.wait_ready()
        assert budget_bytes - (1 << 20) < run.count("budget_bytes") <= budget_bytes
