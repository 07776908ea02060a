"""What becomes of a bad query: its raw bytes in the dead letters, and a `failed` answer where somebody waits for one."""

from __future__ import annotations

from carpool.kafka.stage import Message, Output
from schemas.answer import Stage as StageName
from schemas.answer import unanswered
from schemas.codec import encode
from schemas.deadletter import PREFIX, dead_letter_headers
from schemas.errors import RecordError
from schemas.topics import ANSWERS, DEAD_LETTER_EXTRA_BYTES, QUERIES_DEAD

RECORD_OVERHEAD_BYTES = 1_024


def refusal_outputs(
    message: Message, error: RecordError, *, group: str, stage: StageName, now_us: int
) -> tuple[Output, ...]:
    """Returns the dead letter of `message` and, where the error names a query id, the `failed` answer to it."""
    outputs = [_dead_letter(message, error, group=group, stage=stage)]
    if error.query_id is not None:
        source = message.source
        answer = unanswered(
            query_id=error.query_id,
            status="failed",
            stage=stage,
            error_type=error.reason,
            message=str(error)[:2_000],
            source=source,
        )
        event_id = f"{source.topic}/{source.partition}/{source.offset}/answer"
        value, headers = encode(
            answer, event_id=event_id, source=f"carpool/{stage}", time_us=now_us, passed_on=message.headers
        )
        outputs.append(Output(topic=ANSWERS.name, key=error.query_id.encode(), value=value, headers=headers))
    return tuple(outputs)


def _dead_letter(message: Message, error: RecordError, *, group: str, stage: str) -> Output:
    """The raw record. One that outgrows its topic (it was compressed on its way in) is cut, and says so in a header."""
    headers = dead_letter_headers(
        message.headers,
        source=message.source,
        group=group,
        stage=stage,
        attempts=1,
        class_name=f"{type(error).__name__}.{error.reason}",
        message=str(error),
    )
    value = message.value
    room = QUERIES_DEAD.max_message_bytes - RECORD_OVERHEAD_BYTES
    size = len(value or b"") + len(message.key or b"") + sum(len(k) + len(v or b"") for k, v in headers)
    if size > room and value is not None:
        keep = max(0, room - (size - len(value)) - DEAD_LETTER_EXTRA_BYTES // 64)
        headers += ((PREFIX + "truncated.from.bytes", str(len(value)).encode()),)
        value = value[:keep]
    return Output(
        topic=QUERIES_DEAD.name,
        key=message.key,
        value=value or b"",
        headers=headers,
        partition=message.source.partition,
    )
