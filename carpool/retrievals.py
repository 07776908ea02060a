"""The record of a retrieval: of a search, a draft, or a workflow that waits for the model. Pure."""

from __future__ import annotations

from carpool.kafka.records import Output
from carpool.kafka.sizes import fits
from schemas.answer import Stage
from schemas.codec import encode
from schemas.retrieval import Retrieval
from schemas.topics import RETRIEVALS, in_class_of


def retrieval_output(
    retrieval: Retrieval, name: str, *, stage: Stage, topic: str | None = None
) -> Output:
    """Returns the record. The id of its event is the place of the query, and `name`.

    `topic`: None is that of retrievals, in the class of the query.
    """
    value, headers = encode(
        retrieval,
        event_id=f"{retrieval.source.place}/{name}",
        source=f"carpool/{stage}",
        time_us=retrieval.completed_us,
        passed_on=retrieval.headers,
    )
    topic = topic or in_class_of(retrieval.source.topic, RETRIEVALS).name
    key = retrieval.query.query_id.encode()
    return Output(topic=topic, key=key, value=value, headers=headers)


def waiting_output(retrieval: Retrieval, *, stage: Stage) -> Output | None:
    """Returns the record with which a workflow waits for the model; None: it would be too large.

    `retrieval` has a journal and no hits.
    """
    journal = retrieval.query.journal
    assert journal is not None, "only workflows wait for the model"
    output = retrieval_output(retrieval, f"w{len(journal.rounds)}", stage=stage)
    return output if fits(output, RETRIEVALS) else None
