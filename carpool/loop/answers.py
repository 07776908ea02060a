"""Terminal answers as records, the same whichever service gives one.

Only the generator writes `rag.answers.v1`. An answer of an earlier service is a record of
`rag.retrievals.v1` first, so that it passes the generator's dedup.
"""

from __future__ import annotations

from dataclasses import replace

from carpool.kafka.records import Output
from schemas.answer import Answer, Stage
from schemas.codec import encode
from schemas.record import Headers
from schemas.topics import ANSWERS, BESIDE


def answer_output(answer: Answer, *, stage: Stage, now_us: int, passed_on: Headers) -> Output:
    """Returns the record of `answer`, whose `source` is set; `passed_on`: headers of the query.

    The event id depends on the input record only, so both copies of a repeated answer have one id.
    """
    assert answer.source is not None, "every answer of a service names its input record"
    value, headers = encode(
        answer,
        event_id=f"{answer.source.record}/answer",
        source=f"carpool/{stage}",
        time_us=now_us,
        passed_on=passed_on,
    )
    return Output(topic=ANSWERS.name, key=answer.query_id.encode(), value=value, headers=headers)


def beside(output: Output, answer: Answer, partition: int) -> Output:
    """Returns `output` with a key that names the record, too, so it supersedes no `ok` answer.

    `partition`: of the record, as where its id has its answers.
    """
    assert answer.source is not None, "every answer of a service names its input record"
    key = f"{answer.query_id}{BESIDE}{answer.source.place}".encode()
    return replace(output, key=key, partition=partition)
