"""A query is planned only if it fits the index: by model, dimension, vector and number of
clusters.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from carpool.disk.manifest import RecallRow, RecallTable
from grouper.admission import Admitted, IndexFacts, admit
from schemas.errors import RecordError
from schemas.query import Query
from tests.records import a_unit

FACTS = IndexFacts(
    index_version="v-1",
    centroids_fingerprint="c1d2",
    embedding_model="e3f4",
    embedding_model_name="all-MiniLM-L6-v2",
    dimension=4,
    nlist=10,
    nprobe_default=3,
)


def admitted(query: Query) -> Admitted:
    return admit(a_unit(1, query), FACTS)


def with_vector(*values: float, model: str = "e3f4") -> Query:
    return Query(
        query_id="q-1", vector=np.array(values, dtype="<f4").tobytes(), embedding_model=model
    )


@pytest.mark.parametrize(
    ("query", "reason", "field", "says"),
    [
        (
            Query(query_id="q-1", text="why?", nprobe=11),
            *("invalid_value", "nprobe", "the index has 10 clusters"),
        ),
        (with_vector(1, 2, 3), "wrong_dimension", "vector", "has 3 float32 .* has dimension 4"),
        (
            with_vector(1, 2, 3, 4, model="other"),
            "wrong_model",
            "embedding_model",
            "Embed with all-MiniLM-L6-v2 and say 'e3f4'",
        ),
        (with_vector(1, float("nan"), 0, 0), "invalid_value", "vector", "not finite"),
        (with_vector(1, float("-inf"), 0, 0), "invalid_value", "vector", "not finite"),
        (with_vector(0, 0, -0.0, 0), "invalid_value", "vector", "all zeros"),
    ],
)
def test_a_query_that_does_not_fit_the_index_is_refused_with_the_reason(
    query: Query, reason: str, field: str, says: str
) -> None:
    with pytest.raises(RecordError, match=says) as caught:
        admitted(query)
    error = caught.value
    assert (error.reason, error.field, error.query_id) == (reason, f"$.{field}", "q-1")


def test_a_text_is_admitted_with_the_default_nprobe_and_no_deadline() -> None:
    query = admitted(Query(query_id="q-1", text="why?"))
    assert (query.vector, query.nprobe, query.deadline_us) == (None, 3, None)
    assert not query.is_expired(10**18)
    assert admitted(Query(query_id="q-1", text="why?", nprobe=10)).nprobe == 10


def test_a_recall_target_is_the_nprobe_of_the_first_row_that_promises_it() -> None:
    rows = (
        RecallRow(target=0.9, nprobe=5, recall=0.91, rows_read=1, read_bytes=1),
        RecallRow(target=0.95, nprobe=8, recall=0.96, rows_read=1, read_bytes=1),
    )
    tuned = replace(FACTS, recall=RecallTable(top_k=10, questions=9, rows=rows))
    for target, nprobe in {0.5: 5, 0.9: 5, 0.91: 8, 0.99: 8, None: 3}.items():
        unit = a_unit(1, Query(query_id="q-1", text="why?", recall_target=target))
        assert (admit(unit, tuned).nprobe, admit(unit, FACTS).nprobe) == (nprobe, 3)


@pytest.mark.parametrize("scale", [1e-45, 1e-30, 5, 3.4e38])
def test_a_vector_of_any_length_is_normalised(scale: float) -> None:
    vector = admitted(with_vector(scale, -scale, 0, 0)).vector
    assert vector is not None and vector.dtype == np.float32
    assert vector.tolist() == pytest.approx([0.5**0.5, -(0.5**0.5), 0, 0])


def test_a_deadline_has_passed_from_its_very_microsecond_on() -> None:
    query = admitted(Query(query_id="q-1", text="why?", deadline=7))
    assert query.deadline_us == 7_000
    assert not query.is_expired(6_999)
    assert query.is_expired(7_000)
