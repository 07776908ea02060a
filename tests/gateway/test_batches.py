"""Files and batches by the unmodified SDK, which checks each answer against its own types."""

from __future__ import annotations

import json
import signal
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import openai
import pytest
from openai.types import Batch

from carpool.clock import SystemClock
from carpool.kafka.settings import KafkaSettings
from gateway.batches import JOBS_MAX
from gateway.keys import key_of
from gateway.plan.batches import BATCH_FIELDS, FILE_FIELDS
from producers.batch.batch_log import batch_record, read_batches
from producers.publish_queries import Publisher
from producers.settings import ClientSettings
from schemas.answer import Usage, unanswered
from schemas.batch import BatchRequest
from schemas.query import Query
from schemas.record import Record, Source
from schemas.topics import QUERIES_BATCH
from tests.gateway.conftest import started
from tests.producers.responder import Responder, answer_to
from tests.records import a_batch
from tests.waiting import WAIT_S, wait_until

CLOCK = SystemClock()
ENDED = ("completed", "failed", "expired", "cancelled")


@pytest.fixture(scope="module")
def asked(embedded_bootstrap: str) -> Iterator[Responder]:
    made = Responder(embedded_bootstrap, QUERIES_BATCH.name)
    yield made
    made.close()


SEARCH = {"type": "file_search", "vector_store_ids": ["default"]}


def line(number: int, text: str, url: str = "/v1/chat/completions", **body: Any) -> str:
    said = {"messages": [{"role": "user", "content": text}]} if "chat" in url else {"input": text}
    whole = {"model": "carpool", **said, **body}
    return json.dumps({"custom_id": f"c-{number}", "method": "POST", "url": url, "body": whole})


def begun(
    sdk: openai.OpenAI, *lines: str, endpoint: Any = "/v1/chat/completions", **more: Any
) -> Batch:
    file = sdk.files.create(file=("q.jsonl", "\n".join(lines).encode()), purpose="batch")
    return sdk.batches.create(
        input_file_id=file.id, endpoint=endpoint, completion_window="24h", **more
    )


def ended(sdk: openai.OpenAI, batch: Batch) -> Batch:
    until_s = time.monotonic() + WAIT_S
    while batch.status not in ENDED:
        assert time.monotonic() < until_s, batch
        time.sleep(0.1)
        batch = sdk.batches.retrieve(batch.id)
    return batch


def lines_of(sdk: openai.OpenAI, file_id: str | None) -> list[dict[str, Any]]:
    assert file_id is not None
    return [json.loads(each) for each in sdk.files.content(file_id).text.splitlines()]


def test_a_file_is_kept_listed_read_and_deleted(sdk: openai.OpenAI) -> None:
    content = bytes(range(256)) * 4_000
    file = sdk.files.create(file=("ä b.jsonl", content), purpose="batch")
    assert (file.bytes, file.filename, file.status) == (len(content), "ä b.jsonl", "processed")
    assert sdk.files.retrieve(file.id) == file
    assert file in sdk.files.list(purpose="batch").data
    assert sdk.files.content(file.id).read() == content
    empty = sdk.files.create(file=("none", b""), purpose="batch")
    assert sdk.files.content(empty.id).read() == b""
    assert sdk.files.delete(file.id).deleted
    with pytest.raises(openai.NotFoundError, match="no file"):
        sdk.files.retrieve(file.id)


def test_files_are_listed_in_pages(sdk: openai.OpenAI) -> None:
    made = [sdk.files.create(file=(f"p{n}", b"x"), purpose="batch").id for n in range(5)]
    found = [file.id for file in sdk.files.list(limit=2) if file.id in made]
    assert found == made[::-1]


def test_a_batch_is_answered_line_by_line_in_the_order_of_its_file(
    sdk: openai.OpenAI, asked: Responder
) -> None:
    def reply(query: Query, source: Source) -> list[Record]:
        used = Usage(input_tokens=5, output_tokens=2)
        return [answer_to(query, source, f"It is {query.text}", usage=used)]

    asked.reply = reply
    system = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "two"}]
    made = begun(
        sdk,
        line(1, "one"),
        line(2, "two", messages=system),
        line(3, "bad", n=2),
        "",
        line(4, "four", "/v1/responses"),
        line(5, "five", model="gpt-5"),
        line(6, "six", "/v1/responses", tools=[SEARCH], include=["file_search_call.results"]),
        metadata={"of": "me"},
    )
    batch = ended(sdk, made)
    assert (batch.status, batch.metadata, batch.errors) == ("completed", {"of": "me"}, None)
    counts = batch.request_counts
    assert counts is not None
    assert (counts.total, counts.completed, counts.failed) == (6, 3, 3)
    good, bad = lines_of(sdk, batch.output_file_id), lines_of(sdk, batch.error_file_id)
    assert [each["custom_id"] for each in good] == ["c-1", "c-2", "c-4"]
    bodies = [each["response"]["body"] for each in good]
    for body in bodies[:2]:
        openai.types.chat.ChatCompletion.model_validate(body, strict=True)
    assert openai.types.responses.Response.model_validate(bodies[2]).output_text == "It is four"
    assert bodies[0]["choices"][0]["message"]["content"] == "It is one"
    assert bodies[0]["usage"]["prompt_tokens"] == 5
    assert [each["custom_id"] for each in bad] == ["c-3", "c-5", "c-6"]
    assert {each["response"]["status_code"] for each in bad} == {400}
    whys = [each["response"]["body"]["error"]["message"] for each in bad]
    assert whys[0] == "body.n: an answer is one text; leave it out"
    assert "there is no model 'gpt-5'" in whys[1] and "answers of batches have none" in whys[2]
    assert next(query.instructions for query in asked.seen if query.text == "two") == "Be brief."
    assert batch.id in [each.id for each in sdk.batches.list(limit=100)]


def test_questions_that_fail_are_in_the_file_of_errors(
    sdk: openai.OpenAI, asked: Responder
) -> None:
    def reply(query: Query, source: Source) -> list[Record]:
        if query.text != "worse":
            return [answer_to(query, source)]
        return [
            unanswered(
                query_id=query.query_id,
                status="failed",
                stage="generator",
                error_type="llm_refused",
                message="too long",
                source=source,
            )
        ]

    asked.reply = reply
    batch = ended(sdk, begun(sdk, line(1, "well"), line(2, "worse")))
    (bad,) = lines_of(sdk, batch.error_file_id)
    assert (bad["custom_id"], bad["response"]["status_code"]) == ("c-2", 502)
    assert bad["response"]["body"]["error"]["message"] == "too long"
    assert len(lines_of(sdk, batch.output_file_id)) == 1


def test_a_cancelled_batch_has_the_answers_that_came(sdk: openai.OpenAI, asked: Responder) -> None:
    asked.reply = lambda query, source: [answer_to(query, source)] * (query.text == "soon")
    batch = begun(sdk, line(1, "soon"), line(2, "never"))
    with pytest.raises(openai.ConflictError, match="still reads it"):
        sdk.files.delete(batch.input_file_id)
    until_s = time.monotonic() + WAIT_S
    while not any(query.text == "never" for query in asked.seen):
        assert time.monotonic() < until_s
        time.sleep(0.05)
    assert sdk.batches.cancel(batch.id).status == "cancelling"
    batch = ended(sdk, batch)
    assert batch.status == "cancelled"
    assert [each["custom_id"] for each in lines_of(sdk, batch.output_file_id)] == ["c-1"]
    (left,) = lines_of(sdk, batch.error_file_id)
    assert (left["custom_id"], left["error"]["code"]) == ("c-2", "batch_cancelled")
    with pytest.raises(openai.ConflictError, match="cannot be cancelled"):
        sdk.batches.cancel(batch.id)


@pytest.mark.parametrize(
    ("content", "says"),
    [("who?", "plain text"), ("{}", "has no question"), ("", "has no question")],
)
def test_a_file_without_a_question_fails_its_batch_with_the_reason(
    sdk: openai.OpenAI, content: str, says: str
) -> None:
    batch = ended(sdk, begun(sdk, content))
    assert batch.status == "failed"
    assert batch.errors is not None
    assert batch.errors.data is not None
    assert says in (batch.errors.data[0].message or "")
    assert "/" not in (batch.errors.data[0].message or "").replace("/v1", "")


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        ({"endpoint": "/v1/embeddings"}, "endpoint: only /v1"),
        ({"completion_window": "1h"}, "completion_window"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 3600}}, "7 days"),
        ({"metadata": {"a": "x" * 513}}, "metadata"),
        ({"input_file_id": "file-none"}, "no file"),
    ],
)
def test_a_batch_that_cannot_be_is_refused(
    sdk: openai.OpenAI, wanted: dict[str, Any], says: str
) -> None:
    file = sdk.files.create(file=("q", line(1, "x").encode()), purpose="batch")
    given: Any = {
        "input_file_id": file.id,
        "endpoint": "/v1/responses",
        "completion_window": "24h",
    } | wanted
    with pytest.raises(openai.APIStatusError, match=says):
        sdk.batches.create(**given)


def test_with_an_idempotency_key_there_is_one_batch(sdk: openai.OpenAI, asked: Responder) -> None:
    asked.reply = lambda query, source: [answer_to(query, source)]
    file = sdk.files.create(file=("q", line(1, "x").encode()), purpose="batch")
    other = sdk.files.create(file=("q", line(1, "y").encode()), purpose="batch")
    given: Any = {"endpoint": "/v1/chat/completions", "completion_window": "24h"}
    key = {"Idempotency-Key": f"k{time.time_ns()}"}
    first = sdk.batches.create(input_file_id=file.id, extra_headers=key, **given)
    assert sdk.batches.create(input_file_id=file.id, extra_headers=key, **given).id == first.id
    with pytest.raises(openai.ConflictError):
        sdk.batches.create(input_file_id=other.id, extra_headers=key, **given)


@pytest.mark.parametrize(
    "number", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.long)]
)
def test_another_gateway_ends_a_batch_and_asks_nothing_twice(
    asked: Responder, tmp_path: Path, number: signal.Signals
) -> None:
    texts = [f"{number} {n}" for n in range(200)]
    asked.reply = lambda query, source: [answer_to(query, source)] * (query.text in texts[:120])
    (file := tmp_path / "keys").write_bytes(msgspec.json.encode(key_of("k", "a")))
    setting = f"gateway.keys_file={file}"
    with (
        started(asked.bootstrap, tmp_path, setting) as (first, base_url, _),
        started(asked.bootstrap, tmp_path, setting) as (_, other_url, _),
    ):
        lines = [line(n, text) for n, text in enumerate(texts)]
        batch = begun(openai.OpenAI(base_url=base_url, api_key="k"), *lines)
        wait_until(lambda: len([q for q in asked.seen if q.text in texts]) == 200, "all asked")
        asked.reply = lambda query, source: [answer_to(query, source)]
        first.send_signal(number)
        first.wait(WAIT_S)
        batch = ended(openai.OpenAI(base_url=other_url, api_key="k"), batch)
        counts = batch.request_counts
        assert (batch.status, counts and counts.completed) == ("completed", 200)
    ids = Counter(query.query_id for query in asked.seen if query.text in texts)
    assert len(ids) == 200
    again = [name for name, count in ids.items() if count > 1]
    assert len(again) == 80, "only what had no answer is asked again, with its id"


def test_an_owner_has_its_own_files_and_batches_alone(asked: Responder, tmp_path: Path) -> None:
    asked.reply = lambda query, source: [answer_to(query, source)]
    keys = [key_of("one", "a"), key_of("two", "b"), key_of("three", "a")]
    (file := tmp_path / "keys").write_bytes(b"\n".join(map(msgspec.json.encode, keys)))
    with started(asked.bootstrap, tmp_path, f"gateway.keys_file={file}") as (_, base_url, _):
        owner, other, colleague = (
            openai.OpenAI(base_url=base_url, api_key=key) for key in ("one", "two", "three")
        )
        batch = ended(owner, begun(owner, line(1, "mine")))
        assert colleague.batches.retrieve(batch.id) == batch
        assert not other.files.list().data and not other.batches.list().data
        names = (batch.input_file_id, batch.output_file_id or "")
        tries: list[Callable[[], object]] = [
            partial(other.batches.retrieve, batch.id),
            partial(other.batches.cancel, batch.id),
            *(
                partial(call, name)
                for name in names
                for call in (other.files.retrieve, other.files.content, other.files.delete)
            ),
            partial(
                other.batches.create,
                input_file_id=names[0],
                endpoint="/v1/chat/completions",
                completion_window="24h",
            ),
        ]
        for each in tries:
            with pytest.raises(openai.NotFoundError):
                each()
        assert owner.files.content(names[0]).text == line(1, "mine")


def test_a_gateway_stops_the_batches_of_a_key_that_has_used_its_cost(
    asked: Responder, tmp_path: Path
) -> None:
    used = Usage(input_tokens=10_000)
    asked.reply = lambda query, source: [answer_to(query, source, usage=used)]
    texts = {f"dear {n}" for n in range(3_000)}
    (file := tmp_path / "keys").write_bytes(
        msgspec.json.encode(key_of("k", "spender", cost_a_day=3.0))
    )
    settings = (f"gateway.keys_file={file}", "client.price_in=1")
    with started(asked.bootstrap, tmp_path, *settings) as (_, base_url, _):
        sdk = openai.OpenAI(base_url=base_url, api_key="k", max_retries=0)
        begun(sdk, *(line(n, text) for n, text in enumerate(texts)))

        def is_refused() -> bool:
            try:
                sdk.batches.list()
            except openai.RateLimitError:
                return True
            return False

        wait_until(is_refused, "the cost of today is used")

        def is_open() -> bool:
            (batch,) = (
                each
                for each in read_batches(KafkaSettings(bootstrap=asked.bootstrap), CLOCK).values()
                if each.request is not None and each.request.owner == "spender"
            )
            assert batch.request is not None
            return batch.runner is None and batch.state == "stopped" and not batch.request.ended

        wait_until(is_open, "the batch waits")
    seen = sum(query.text in texts for query in asked.seen)
    assert 300 <= seen < 3_000, "what is in flight is answered, and nothing more is asked"


def form(*parts: str, boundary: str = "b") -> tuple[str, bytes]:
    """Content type and body of a form; a part is its head, an empty line, and its content."""
    body = "".join(f"--{boundary}\r\nContent-Disposition: form-data; {part}\r\n" for part in parts)
    return f"multipart/form-data; boundary={boundary}", f"{body}--{boundary}--\r\n".encode()


PURPOSE = 'name="purpose"\r\n\r\nbatch'
FILE = 'name="file"; filename="q"\r\n\r\nx'


@pytest.mark.parametrize(
    ("content_type", "body", "says"),
    [
        ("application/json", b"{}", "no file"),
        ("multipart/form-data", b"x", "boundary"),
        (form(PURPOSE, FILE)[0], b"--c\r\n\r\n", "no form"),
        (*form(PURPOSE), "no file"),
        (*form(FILE), "purpose"),
        (*form(FILE, PURPOSE.replace("batch", "vision")), "purpose"),
        (*form(FILE, FILE, PURPOSE), "Too many files"),
        (*form(FILE, *[PURPOSE] * 50_000), "Too many fields"),
        (*form(FILE, PURPOSE.replace("batch", "x" * 100_000)), "exceeded maximum size"),
        (*form(FILE.replace("q", "x" * 100_000), PURPOSE), "no form"),
        (*form(FILE, PURPOSE, 'name="expires_after[seconds]"\r\n\r\n5'), "7 days"),
        (*form(FILE, PURPOSE, 'name="wish"\r\n\r\n5'), "does not know"),
        (*form('name="file"\r\n\r\nx', PURPOSE), "no file"),
        (*form(PURPOSE, FILE)[:1], form(PURPOSE, FILE)[1][:-9], "no file"),
    ],
)
def test_a_form_that_is_no_file_is_refused(
    address: tuple[str, str], sdk: openai.OpenAI, content_type: str, body: bytes, says: str
) -> None:
    base_url, key = address
    headers = {"authorization": f"Bearer {key}", "content-type": content_type}
    before = len(sdk.files.list(limit=1_000).data)
    found = httpx2.post(f"{base_url}/files", content=body, headers=headers)
    assert found.status_code == 400 and says in found.json()["error"]["message"], found.text
    assert len(sdk.files.list(limit=1_000).data) == before


def test_every_field_of_the_sdk_is_in_the_tables() -> None:
    assert openai.types.BatchCreateParams.__annotations__.keys() == BATCH_FIELDS.keys()
    assert openai.types.FileCreateParams.__annotations__.keys() == FILE_FIELDS.keys()


def test_an_owner_with_many_batches_makes_room_for_another_one(
    asked: Responder, tmp_path: Path
) -> None:
    """The batches of the first one are never answered."""
    asked.reply = lambda query, source: [answer_to(query, source)] * query.text.startswith("other")
    keys = [key_of("one", "a"), key_of("two", "b")]
    (file := tmp_path / "keys").write_bytes(b"\n".join(map(msgspec.json.encode, keys)))
    with started(asked.bootstrap, tmp_path, f"gateway.keys_file={file}") as (_, base_url, _):
        owner, other = (openai.OpenAI(base_url=base_url, api_key=key) for key in ("one", "two"))
        many = [begun(owner, line(1, f"many {n}")) for n in range(JOBS_MAX)]
        texts = {f"many {n}" for n in range(JOBS_MAX)}
        wait_until(lambda: texts <= {query.text for query in asked.seen}, "all are at work")
        assert ended(other, begun(other, line(1, "other"))).status == "completed"
        assert {owner.batches.retrieve(each.id).status for each in many} == {"in_progress"}


@pytest.mark.long
def test_a_batch_older_than_a_day_ends_with_what_it_has(
    sdk: openai.OpenAI, asked: Responder
) -> None:
    file = sdk.files.create(file=("q", line(1, "too late").encode()), purpose="batch")
    request = BatchRequest(owner="local", endpoint="/v1/responses", input_file_id=file.id)
    now_us = CLOCK.now_us()
    begun_ms = now_us // 1_000 - 25 * 3_600_000
    old = a_batch(uuid.uuid4().hex, request=request, created_ms=begun_ms, runner=None, rounds=())
    kafka = KafkaSettings(bootstrap=asked.bootstrap)
    publisher = Publisher(kafka, ClientSettings())
    publisher.send(batch_record(old, now_us), lambda *_: None)
    publisher.close(WAIT_S)
    wait_until(lambda: f"batch_{old.batch_id}" in {each.id for each in sdk.batches.list()}, "known")
    batch = ended(sdk, sdk.batches.retrieve(f"batch_{old.batch_id}"))
    assert (batch.status, batch.output_file_id) == ("expired", None)
    (left,) = lines_of(sdk, batch.error_file_id)
    assert (left["custom_id"], left["error"]["code"]) == ("c-1", "batch_expired")
    assert "too late" not in {query.text for query in asked.seen}
