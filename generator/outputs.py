"""The records that the generator writes: terminal answers, pieces of answers, finished steps."""

from __future__ import annotations

from dataclasses import replace

from carpool.kafka.records import Output
from carpool.kafka.sizes import fits, record_bytes
from carpool.loop.answers import answer_output
from schemas.answer import Answer, PartialAnswer, StepDone, unanswered
from schemas.codec import encode
from schemas.record import Headers
from schemas.retrieval import Retrieval
from schemas.topics import ANSWERS, PARTIAL_ANSWERS

SOURCE = "carpool/generator"


def bounded_answer_output(
    answer: Answer, headers: Headers, now_us: int, partition: int | None = None
) -> Output:
    """Returns the record of `answer`, or of a `failed` answer if its topic would refuse it.

    `partition`: of the record that is answered, where the dedup looks for its answer.
    """
    output = answer_output(answer, stage="generator", now_us=now_us, passed_on=headers)
    if fits(output, ANSWERS):
        return replace(output, partition=partition)
    size_bytes = record_bytes(output.key, output.value, output.headers)
    message = (
        f"the answer's record has {size_bytes} bytes, and {ANSWERS.name} takes "
        f"{ANSWERS.max_message_bytes}"
    )
    too_large = unanswered(
        query_id=answer.query_id,
        status="failed",
        stage="generator",
        error_type="too_large",
        message=f"{message}; ask for fewer tokens or passages, and send small headers",
        source=answer.source,
    )
    # Without the headers of the query: they may be too large themselves.
    output = answer_output(too_large, stage="generator", now_us=now_us, passed_on=())
    return replace(output, partition=partition)


def partial_output(
    retrieval: Retrieval,
    generation_id: str,
    seq: int,
    text: str,
    now_us: int,
    step: StepDone | None = None,
) -> Output:
    """Returns the record of a piece of an answer, or of a finished step."""
    query_id = retrieval.query.query_id
    value, headers = encode(
        PartialAnswer(
            query_id=query_id, generation_id=generation_id, seq=seq, text=text, step=step
        ),
        event_id=f"{generation_id}/{seq}",
        source=SOURCE,
        time_us=now_us,
        passed_on=retrieval.headers,
    )
    return Output(topic=PARTIAL_ANSWERS.name, key=query_id.encode(), value=value, headers=headers)
