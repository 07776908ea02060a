"""Turns files and batches into OpenAI's objects, and answers of a batch into its lines. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec

from gateway.failures import error_body, failure_of
from gateway.plan.objects import AddressOf, Object, chat_object, output_items, response_object
from gateway.plan.objects import status_of as response_status
from producers.batch.lines import CHAT, URLS, BatchLine
from producers.openai.fields import USED, BadRequest, Field, check_fields, refused
from schemas.answer import Answer
from schemas.batch import AnswerLine, Batch, BatchRequest, HowEnded
from schemas.files import StoredFile
from schemas.topics import DAY_MS, FILES

WINDOW, WINDOW_MS = "24h", DAY_MS
KEPT = f"files are kept for {FILES.retention_ms // DAY_MS} days"
PREFIX = "batch_"
PAIRS_MAX, NAME_CHARS_MAX, VALUE_CHARS_MAX = 16, 64, 512
BATCH_FIELDS: Mapping[str, Field] = {
    "completion_window": USED,
    "endpoint": USED,
    "input_file_id": USED,
    "metadata": USED,
    "output_expires_after": refused(KEPT),
}
FILE_FIELDS: Mapping[str, Field] = {
    "expires_after": refused(KEPT),
    "file": USED,
    "purpose": USED,
}
Found = TypeVar("Found")


def file_object(file: StoredFile) -> Object:
    """Returns a `file`."""
    return {
        "id": file.file_id,
        "object": "file",
        "bytes": file.size_bytes,
        "created_at": file.created_ms // 1_000,
        "expires_at": (file.created_ms + FILES.retention_ms) // 1_000,
        "filename": file.name,
        "purpose": file.purpose,
        "status": "processed",
    }


def batch_request(body: Any, owner: str) -> BatchRequest:
    """Returns what a request to `/v1/batches` asks for. Raises `BadRequest`."""
    if not isinstance(body, dict):
        raise BadRequest("the body is no JSON object")
    check_fields(body, BATCH_FIELDS)
    endpoint, input_file_id = body.get("endpoint"), body.get("input_file_id")
    if endpoint not in URLS:
        raise _bad("endpoint", f"only {' and '.join(URLS)} are answered")
    if body.get("completion_window") != WINDOW:
        raise _bad("completion_window", f"it is {WINDOW!r}, and no other")
    if not isinstance(input_file_id, str) or not input_file_id:
        raise _bad("input_file_id", "it is missing: upload a file with the purpose 'batch'")
    metadata = body.get("metadata")
    if metadata is not None and not _is_metadata(metadata):
        raise _bad(
            "metadata",
            f"at most {PAIRS_MAX} texts of {VALUE_CHARS_MAX} characters, with names of "
            f"{NAME_CHARS_MAX}",
        )
    return BatchRequest(
        owner=owner, endpoint=endpoint, input_file_id=input_file_id, metadata=metadata
    )


def _is_metadata(metadata: Any) -> bool:
    if not isinstance(metadata, dict) or len(metadata) > PAIRS_MAX:
        return False
    return all(
        len(name) <= NAME_CHARS_MAX and isinstance(text, str) and len(text) <= VALUE_CHARS_MAX
        for name, text in metadata.items()
    )


def batch_object(batch: Batch, request: BatchRequest) -> Object:
    """Returns a `batch`."""
    status = status_of(batch, request)
    done = sum(batch.counts.get(each, 0) for each in ("ok", "partial"))
    failed = batch.file.refused + sum(batch.counts.values()) - done
    created_s, ended_s = batch.created_ms // 1_000, request.ended_ms // 1_000
    times: Object = {"in_progress_at": created_s if batch.file.lines else None}
    if request.ended is not None:
        times[f"{request.ended}_at"] = ended_s
    if status == "completed" or status == "finalizing":
        times["finalizing_at"] = ended_s or batch.updated_ms // 1_000
    failure = {"code": "invalid_batch", "message": request.failure, "line": None, "param": None}
    return {
        "id": PREFIX + batch.batch_id,
        "object": "batch",
        "endpoint": request.endpoint,
        "input_file_id": request.input_file_id,
        "completion_window": WINDOW,
        "status": status,
        "errors": {"object": "list", "data": [failure]} if request.failure else None,
        "output_file_id": request.output_file_id,
        "error_file_id": request.error_file_id,
        "created_at": created_s,
        "expires_at": (batch.created_ms + WINDOW_MS) // 1_000,
        "request_counts": {
            "total": batch.file.questions + batch.file.refused,
            "completed": done,
            "failed": failed,
        },
        "metadata": request.metadata,
        **times,
    }


def status_of(batch: Batch, request: BatchRequest) -> str:
    """Returns OpenAI's word for the state of a batch."""
    if request.ended is not None:
        return request.ended
    if is_cancelled(batch, request):
        return "cancelling"
    if not batch.file.lines:
        return "validating"
    return "finalizing" if batch.state == "done" else "in_progress"


def is_cancelled(batch: Batch, request: BatchRequest) -> bool:
    """Returns whether its owner, or `carpool batch cancel`, has cancelled a batch."""
    return request.is_cancelled or batch.state == "cancelled"


def why_it_ends(batch: Batch, request: BatchRequest, now_ms: int) -> HowEnded | None:
    """Returns how a batch ends before all is answered; None: it goes on."""
    if is_cancelled(batch, request):
        return "cancelled"
    return "expired" if now_ms > batch.created_ms + WINDOW_MS else None


def output_line(
    line: AnswerLine, asked: BatchLine | None, batch: Batch, address_of: AddressOf
) -> tuple[bool, Object]:
    """Returns whether a line has an answer, and its line of the output or of the errors.

    `asked`: None for a line that cannot be asked.
    """
    made: Object = {
        "id": f"batch_req_{batch.batch_id}-{line.line}",
        "custom_id": line.custom_id,
        "response": None,
        "error": None,
    }
    answer = None if asked is None else _answer_of(line)
    failure = None if answer is None else failure_of(answer)
    if asked is None or asked.asked is None or answer is None or failure is not None:
        why = line.error.message if line.error else str(failure)
        status = 400 if failure is None else failure.status
        body = error_body(why, code=line.error.type if line.error else "")
    else:
        status = 200
        body = _body(asked, answer, batch.created_ms // 1_000, address_of)
        body["carpool"] = msgspec.to_builtins(line, str_keys=True)
    made["response"] = {"status_code": status, "request_id": line.id or made["id"], "body": body}
    return status == 200, made


def unasked_line(number: int, asked: BatchLine, batch: Batch, why: str) -> Object:
    """Returns the line of the errors for a question without an answer when its batch ended."""
    return {
        "id": f"batch_req_{batch.batch_id}-{number}",
        "custom_id": asked.custom_id,
        "response": None,
        "error": {"code": f"batch_{why}", "message": f"the batch was {why} before its answer"},
    }


def _answer_of(line: AnswerLine) -> Answer:
    assert line.status != "refused"
    return Answer(
        query_id=line.id or "",
        status=line.status,
        is_final=True,
        replayed=False,
        attempts=1,
        citations=line.citations,
        retrieved=line.retrieved,
        answer=line.answer,
        finish_reason=line.finish_reason,
        usage=line.tokens,
        error=line.error,
    )


def _body(asked: BatchLine, answer: Answer, created_s: int, address_of: AddressOf) -> Object:
    question = asked.asked
    assert question is not None
    name = answer.query_id
    if asked.url == CHAT:
        return chat_object(question, f"chatcmpl-{name}", created_s, answer, address_of)
    response_id = f"resp_{name}"
    return response_object(
        question,
        response_id,
        created_s,
        status=response_status(answer),
        output=output_items(question, answer, response_id, address_of),
        answer=answer,
    )


def page(
    found: list[Found], query: Mapping[str, str], id_of: Callable[[Found], str], limit_default: int
) -> tuple[list[Found], bool]:
    """Returns the part of a list that `after` and `limit` ask for, and whether more follows.

    Raises `BadRequest`.
    """
    limit, after = query.get("limit", str(limit_default)), query.get("after")
    if len(limit) > 5 or not limit.isdecimal() or not 1 <= int(limit) <= 10_000:
        raise _bad("limit", "it is a number from 1 to 10000")
    if query.get("order", "desc") not in ("asc", "desc"):
        raise _bad("order", "it is asc or desc")
    if query.get("order") == "asc":
        found = found[::-1]
    if after is not None:
        ids = [id_of(each) for each in found]
        if after not in ids:
            raise _bad("after", f"there is no {after!r} in this list")
        found = found[ids.index(after) + 1 :]
    return found[: int(limit)], len(found) > int(limit)


def _bad(param: str, why: str) -> BadRequest:
    return BadRequest(f"{param}: {why}", param=param)
