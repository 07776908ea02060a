"""The record of `rag.retrievals.v1` with which a workflow waits for the model."""

from __future__ import annotations

from carpool.kafka.records import Output
from carpool.kafka.sizes import fits
from schemas.answer import Stage
from schemas.codec import encode
from schemas.retrieval import Retrieval
from schemas.topics import RETRIEVALS, in_class_of


def waiting_output(retrieval: Retrieval, *, stage: Stage, now_us: int) -> Output | None:
    """Returns the record; None: it would be too large. `retrieval` has a journal and no hits."""
    journal, place = retrieval.query.journal, retrieval.source.place
    assert journal is not None, "only workflows wait for the model"
    value, headers = encode(
        retrieval,
        event_id=f"{place}/w{len(journal.rounds)}",
        source=f"carpool/{stage}",
        time_us=now_us,
        passed_on=retrieval.headers,
    )
    output = Output(
        topic=in_class_of(retrieval.source.topic, RETRIEVALS).name,
        key=retrieval.query.query_id.encode(),
        value=value,
        headers=headers,
    )
    return output if fits(output, RETRIEVALS) else None
