"""The searcher as a stage: other indexes, deadlines, damage, passages that do not fit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from carpool.disk.documents import Passage
from carpool.errors import DeploymentError, RetryableError
from carpool.origins import index_wanted, origin_of, read_query
from schemas.group import GroupedSearch
from schemas.record import ClusterId, header
from schemas.retrieval import Probe
from schemas.topics import RETRIES, RETRIEVALS
from searcher.executor import SearchResult
from searcher.index_fit import check_fits
from searcher.results import finish
from searcher.scoring.top_k import TopK
from tests.clocks import HandClock
from tests.records import a_message
from tests.searcher.helpers import (
    SmallIndex,
    make_group,
    make_unit,
    normalised,
    running,
    write_index,
)
from tests.searcher.stage import questions

WRONG: dict[str, dict[str, Any]] = {
    "centroids another": {"centroids_fingerprint": "another"},
    "embedding model other-model": {"embedding_model": "other-model"},
    "32 bytes; 16 float32": {"vectors": [np.ones(8)], "clusters": [(1,)]},
    "not among the 8": {"vectors": questions(1), "clusters": [(1, 8)]},
    "cluster that is not among": {"vectors": questions(1), "clusters": [(-1,)]},
}


def test_a_group_that_does_not_fit_the_index_stops_the_searcher_and_loses_nothing(
    index: SmallIndex,
) -> None:
    for words, changes in WRONG.items():
        group = make_group(index, **{"vectors": questions(2), **changes})
        with pytest.raises(DeploymentError, match=words):
            check_fits(make_unit(7, group), index.manifest)
    (query,) = make_group(index, questions(1)).queries
    for other in (
        GroupedSearch(vector=b"\0" * 4, clusters=query.clusters),
        GroupedSearch(vector=query.vector, clusters=(ClusterId(8),)),
    ):
        replaced = msgspec.structs.replace(query, other_searches=(other,))
        group = make_group(index, [], queries=(replaced,))
        with pytest.raises(DeploymentError, match=r"groups skip searcher rag\.groups\.v1/0/7"):
            check_fits(make_unit(7, group), index.manifest)
    with running(index) as run:
        run.wait_ready()
        run.stage.offer(make_unit(0, group), 0)
        error = run.sink.wait_failure()
        assert isinstance(error, DeploymentError)
    assert run.sink.dones == []


def test_queries_of_a_group_of_an_older_index_are_planned_again_as_published(
    index: SmallIndex,
) -> None:
    group = make_group(index, questions(3), index_version="v-before", centroids_fingerprint="old")
    # As the grouper leaves a query that brought its vector, at its second attempt.
    with_vector = msgspec.structs.replace(
        group.queries[1],
        query=msgspec.structs.replace(group.queries[1].query, embedding_model="model-fingerprint"),
        headers=(("rag-attempt", b"2"), ("rag-not-before-ms", b"7"), ("x", b"1")),
    )
    group = msgspec.structs.replace(
        group, queries=(group.queries[0], with_vector, group.queries[2])
    )
    with running(index) as run:
        run.wait_ready()
        run.stage.offer(make_unit(0, group, parts_done=frozenset({2})), 0)
        run.sink.wait_done(2)
        found = run.search(make_group(index, questions(1), sequence=4))
        assert list(found) == ["q4-0"], "the searcher goes on"
        assert run.count("queries_returned_total") == 2
    first, second = run.sink.outputs()[:2]
    assert run.sink.parts()[:2] == [(0, 0), (0, 1)], "what an earlier life returned is not again"
    assert (first.topic, first.key, first.partition) == (RETRIES.name, b"q0-0", None)
    for output, grouped, attempt in ((first, group.queries[0], b"1"), (second, with_vector, b"2")):
        message = a_message(output.topic, 5, value=output.value, headers=output.headers)
        query = read_query(message)
        assert (query.query_id, query.text) == (grouped.query.query_id, "why?")
        assert query.vector == (grouped.vector if grouped is with_vector else None)
        assert origin_of(message) == grouped.source
        assert index_wanted(message) == "v-test"
        assert header(output.headers, "rag-attempt") == attempt
        assert header(output.headers, "rag-not-before-ms") is None, "it begins now"


def test_a_searcher_with_an_older_index_than_a_group_leaves_its_consumer_group(
    index: SmallIndex,
) -> None:
    with running(index) as run:
        run.wait_ready()
        run.stage.offer(make_unit(0, make_group(index, questions(1), index_version="v-uture")), 0)
        (reason,) = run.sink.reasons_to_leave
        run.stage.revoke(frozenset({0}), frozenset())
    assert "has index v-test, and groups are planned with the newer index v-uture" in reason
    assert "carpool index promote" in reason
    assert run.sink.dones == run.sink.failures == []


# ---- deadlines


def test_an_expired_query_is_answered_expired_and_not_searched(index: SmallIndex) -> None:
    clock = HandClock(9_000_000)
    with running(index, clock=clock) as run:
        run.search(
            make_group(index, questions(1), deadline_us=9_000_000),
            make_group(index, questions(1), deadline_us=9_000_001, sequence=1),
        )
    answer = run.sink.answers()["q0-0"]
    source = make_group(index, questions(1)).queries[0].source
    assert (answer.status, answer.is_final, answer.source) == ("expired", True, source)
    assert answer.error is not None
    assert (answer.error.type, answer.error.stage, answer.error.retryable) == (
        "expired",
        "searcher",
        True,
    )
    assert run.sink.parts() == [(0, 0), (1, 0)]
    assert run.sink.outputs()[0].topic == RETRIEVALS.name
    assert run.sink.dones[0].early == "expired"
    assert run.sink.outputs()[0].key == b"q0-0"
    assert dict(run.sink.outputs()[0].headers)["ce_id"] == f"{source.record}/answer".encode()
    assert set(run.sink.retrievals()) == {"q1-0"}


# ---- damage


def test_a_query_that_finds_only_damage_is_answered_failed_and_the_next_one_is_searched(
    own_index: SmallIndex,
) -> None:
    own_index.damage(2)
    own_index.damage(4)
    with running(own_index) as run:
        run.search(make_group(own_index, questions(2), clusters=[(2, 4), (1, 4)]))
    answer = run.sink.answers()["q0-0"]
    assert answer.status == "failed"
    assert answer.error is not None
    assert (answer.error.type, answer.error.retryable) == ("index_damaged", False)
    assert "2 of the 2 clusters" in answer.error.message
    assert "carpool index verify" in answer.error.message
    ((part, failure),) = ((done.parts, done.failure) for done in run.sink.dones if done.failure)
    assert part == ((0, 0),)
    assert (failure.is_transient, failure.message) == (False, answer.error.message)
    assert run.sink.retrievals()["q0-1"].skipped_clusters == (4,)


def test_a_retrieval_that_its_topic_would_not_take_is_refused_in_words(tmp_path: Path) -> None:
    vectors = normalised(np.random.default_rng(2).standard_normal((6, 4)))
    documents = [Passage(doc_id=f"d{row}", title="long", text="x" * 1_000_000) for row in range(6)]
    large = write_index(
        tmp_path / "index", vectors, normalised(np.ones((1, 4))), documents=documents
    )
    with running(large) as run:
        run.search(
            make_group(large, [vectors[0]], nprobe=1, top_k=5),
            make_group(large, [vectors[0]], nprobe=1, top_k=4, sequence=1),
        )
    error = run.sink.answers()["q0-0"].error
    assert error is not None
    assert (error.type, error.retryable) == ("too_large", False)
    assert "smaller top_k" in error.message
    assert len(run.sink.retrievals()["q1-0"].hits) == 4


def test_a_query_that_found_nothing_because_of_errors_is_no_empty_result(
    own_index: SmallIndex,
) -> None:
    nothing = np.empty(0, np.int64)
    found = SearchResult(
        best=TopK(np.empty(0, np.float32), nothing, nothing),
        probes=tuple(Probe(cluster=ClusterId(each), tier="ram") for each in (1, 2, 3)),
        skipped=(ClusterId(1),),
        errors=(RetryableError("the disk is gone"),),
        bytes_read=0,
        started_us=0,
        load_us=0,
        search_us=0,
    )
    unit = make_unit(0, make_group(own_index, questions(1)))
    outcome, _ = finish(unit, 0, found, (), fetch_us=0, now_us=1)
    assert outcome.early == "failed"
    assert outcome.failure is not None and outcome.failure.is_transient
    hangs = RetryableError("a read did not come")
    found = replace(found, skipped=(), errors=())
    outcome, _ = finish(unit, 0, found, hangs, fetch_us=0, now_us=1)
    assert outcome.early == "failed", "of its passages"
    assert outcome.failure is not None and outcome.failure.is_transient
