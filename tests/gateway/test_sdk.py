"""OpenAI's own SDK against a gateway: its types check every object and event."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, get_type_hints

import httpx2
import openai
import pytest
from openai.types.chat import completion_create_params
from openai.types.responses import response_create_params

from producers.openai.fields import CHAT_FIELDS, RESPONSE_FIELDS
from schemas.answer import (
    Answer,
    AnswerError,
    Citation,
    Fetched,
    FetchedPassage,
    FoundPassage,
    PartialAnswer,
    TextSpan,
    Usage,
)
from schemas.document import Corpus
from schemas.query import Query
from schemas.record import Record, Source
from schemas.topics import CANCELS
from tests.e2e.support import read_to_end
from tests.gateway.conftest import started
from tests.producers.responder import Responder, answer_to
from tests.waiting import wait_until

TEXT = "Die Brücke 🌉 is 300 m high [1]. It was built in 1889."
CITATIONS = (
    Citation(n=1, doc_id="docs/a.md#1", title="Bridge", start=27, end=30, url="https://x.org/a"),
    Citation(n=2, doc_id="docs/b.md#1", sentence=TextSpan(start=32, end=53), url="ftp://x"),
)
PIECES_S = 0.3
"""Time from the pieces of an answer, which travel in a topic of their own, to the answer."""
TOOL: Any = {"type": "file_search", "vector_store_ids": ["default"], "max_num_results": 4}


def whole(query: Query, source: Source) -> Answer:
    found = FoundPassage(id="docs/a.md#1", text="300 m", score=0.5, metadata={"page": 3})
    return answer_to(
        query,
        source,
        TEXT,
        citations=CITATIONS,
        usage=Usage(input_tokens=90, output_tokens=12, cached_tokens=64),
        passages=(found,) if query.passages else (),
        model="smollm",
        corpus=Corpus(base="b", position={0: 7}),
    )


def in_pieces(
    responder: Responder, pieces: Sequence[str | None], generations: Sequence[str] | None = None
) -> Callable[[Query, Source], list[Record]]:
    """Returns a reply of these pieces and the answer; None in place of a piece: it is lost."""

    def reply(query: Query, source: Source) -> list[Record]:
        names = generations or ["g"] * len(pieces)
        given = [
            PartialAnswer(
                query_id=query.query_id,
                generation_id=name,
                seq=names[:at].count(name),
                text=text,
            )
            for at, (text, name) in enumerate(zip(pieces, names, strict=True))
            if text is not None
        ]
        for piece in given:
            responder.write(piece, query.query_id)
        answer = whole(query, source)
        threading.Timer(PIECES_S, responder.write, (answer, query.query_id)).start()
        return []

    return reply


def cut(text: str, count: int) -> list[str]:
    return [text[len(text) * n // count : len(text) * (n + 1) // count] for n in range(count)]


def test_every_field_of_the_sdk_has_a_place_in_the_table() -> None:
    for params, fields in (
        (response_create_params.ResponseCreateParamsBase, RESPONSE_FIELDS),
        (completion_create_params.CompletionCreateParamsBase, CHAT_FIELDS),
    ):
        assert {"stream", "carpool", *get_type_hints(params)} == fields.keys()


def test_a_response_has_text_links_files_passages_and_our_record(
    sdk: openai.OpenAI, responder: Responder, address: tuple[str, str]
) -> None:
    responder.reply = lambda query, source: [whole(query, source)]
    made = sdk.responses.create(
        model="carpool",
        input="How high?",
        instructions="Be brief.",
        tools=[TOOL],
        include=["file_search_call.results"],
        max_output_tokens=40,
        metadata={"a": "b"},
    )
    asked = responder.seen[-1]
    assert (asked.text, asked.instructions, asked.top_k) == ("How high?", "Be brief.", 4)
    assert asked.generation is not None and asked.generation.max_tokens == 40
    search, message = made.output
    assert search.type == "file_search_call" and search.results is not None
    assert [(each.text, each.file_id, each.attributes) for each in search.results] == [
        ("300 m", "docs/a.md#1", {"page": 3})
    ]
    assert made.output_text == TEXT and message.type == "message"
    (content,) = message.content
    assert content.type == "output_text"
    links = [each for each in content.annotations if each.type == "url_citation"]
    assert [TEXT[each.start_index : each.end_index] for each in links] == [
        "[1]",
        "It was built in 1889.",
    ]
    own = address[0].removesuffix("/v1")
    assert links[0].url == "https://x.org/a"
    assert links[1].url.startswith(f"{own}/passages/docs%2Fb.md%231?signature=")
    files = [each.file_id for each in content.annotations if each.type == "file_citation"]
    assert files == ["docs/a.md#1", "docs/b.md#1"]
    assert made.usage is not None and made.usage.total_tokens == 102
    assert made.metadata == {"a": "b"} and made.instructions == "Be brief."
    assert made.model_extra is not None and made.model_extra["carpool"]["model"] == "smollm"
    assert made.model_extra["carpool"]["corpus"]["position"] == {"0": 7}


def test_a_chat_has_text_links_and_tokens(sdk: openai.OpenAI, responder: Responder) -> None:
    responder.reply = lambda query, source: [whole(query, source)]
    made = sdk.chat.completions.create(
        model="carpool/multistep",
        messages=[
            {"role": "system", "content": "Be kind."},
            {"role": "user", "content": "What is the bridge?"},
            {"role": "assistant", "content": "A bridge."},
            {"role": "user", "content": [{"type": "text", "text": "How high?"}]},
        ],
        seed=3,
    )
    asked = responder.seen[-1]
    assert (asked.text, asked.instructions, asked.workflow) == (
        "How high?",
        "Be kind.",
        "multistep",
    )
    assert [(each.role, each.text) for each in asked.messages] == [
        ("user", "What is the bridge?"),
        ("assistant", "A bridge."),
    ]
    (choice,) = made.choices
    assert (choice.message.content, choice.finish_reason) == (TEXT, "stop")
    assert choice.message.annotations is not None
    assert choice.message.annotations[0].url_citation.url == "https://x.org/a"
    assert made.usage is not None and made.usage.prompt_tokens == 90


def test_earlier_messages_are_condensed_unless_the_request_says_not(
    sdk: openai.OpenAI, responder: Responder
) -> None:
    responder.reply = lambda query, source: [whole(query, source)]
    talk: Any = [{"role": "user", "content": text} for text in ("The bridge?", "How high is it?")]
    for own, workflow in (({}, "condense"), ({"condense": False}, None)):
        sdk.responses.create(model="carpool", input=talk, extra_body={"carpool": own})
        asked = responder.seen[-1]
        assert (asked.workflow, len(asked.messages)) == (workflow, 1 if workflow else 0)


@pytest.mark.parametrize("count", [1, 20])
def test_a_stream_of_a_response_is_its_answer(
    sdk: openai.OpenAI, responder: Responder, count: int
) -> None:
    responder.reply = in_pieces(responder, cut(f" {TEXT}\n", count))
    with sdk.responses.stream(model="carpool", input="How high?", tools=[TOOL]) as stream:
        events = list(stream)
        last = stream.get_final_response()
    assert [each.sequence_number for each in events] == list(range(len(events)))
    kinds = [each.type for each in events]
    deltas = [each.delta for each in events if each.type == "response.output_text.delta"]
    assert "".join(deltas) == last.output_text == TEXT
    assert kinds.index("response.file_search_call.searching") < kinds.index(
        "response.output_text.delta"
    )
    assert kinds[-3:] == [
        "response.file_search_call.completed",
        "response.output_item.done",
        "response.completed",
    ]
    assert kinds.count("response.output_text.annotation.added") == 4


def test_a_stream_of_a_chat_is_its_answer(sdk: openai.OpenAI, responder: Responder) -> None:
    responder.reply = in_pieces(responder, cut(TEXT, 20))
    chunks = list(
        sdk.chat.completions.create(
            model="carpool",
            messages=[{"role": "user", "content": "How high?"}],
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    texts = [each.choices[0].delta.content for each in chunks if each.choices]
    assert "".join(text or "" for text in texts) == TEXT
    assert chunks[-1].usage is not None and chunks[-1].usage.total_tokens == 102


@pytest.mark.parametrize("written", [TEXT, f"Another {TEXT}"])
def test_a_stream_that_lacks_one_of_twenty_pieces_is_whole_or_the_beginning_of_what_was_written(
    sdk: openai.OpenAI, responder: Responder, written: str
) -> None:
    def reply(query: Query, source: Source) -> list[Record]:
        pieces: list[Any] = cut(written, 20)
        pieces[int(query.text or "")] = None
        return in_pieces(responder, pieces)(query, source)

    def response(lost: str) -> tuple[str, bool]:
        events = list(sdk.responses.create(model="carpool", input=lost, stream=True))
        deltas = [each.delta for each in events if each.type == "response.output_text.delta"]
        return "".join(deltas), events[-1].type == "response.completed"

    def chat(lost: str) -> tuple[str, bool]:
        found, messages = "", [{"role": "user", "content": lost}]
        asked: Any = {"model": "carpool", "messages": messages, "stream": True}
        try:
            for chunk in sdk.chat.completions.create(**asked):
                found += chunk.choices[0].delta.content or ""
        except openai.APIError:
            return found, False
        return found, True

    responder.reply = reply
    lost = [*map(str, range(20))]
    with ThreadPoolExecutor(40) as threads:
        found = [threads.map(way, lost) for way in (response, chat)]
        for each in found:
            for at, (text, is_whole) in enumerate(each):
                before = "".join(cut(written, 20)[:at]).rstrip()
                is_right = written == TEXT or before == ""
                assert (text, is_whole) == ((TEXT, True) if is_right else (before, False)), at


def test_a_text_that_is_not_that_of_the_answer_fails_and_is_never_mixed(
    sdk: openai.OpenAI, responder: Responder
) -> None:
    responder.reply = in_pieces(responder, ["Another ", "text ", TEXT], ["g", "g", "h"])
    events = list(sdk.responses.create(model="carpool", input="How high?", stream=True))
    sent = "".join(each.delta for each in events if each.type == "response.output_text.delta")
    assert sent == "Another text" and events[-1].type == "response.failed"
    with pytest.raises(openai.APIError, match="another answer"):
        messages: Any = [{"role": "user", "content": "How high?"}]
        list(sdk.chat.completions.create(model="carpool", messages=messages, stream=True))


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"store": True}, "store"),
        ({"background": True}, "background"),
        ({"top_p": 0.5}, "top_p"),
        ({"tools": [{"type": "web_search"}]}, "tools"),
        ({"temperature": 3}, "temperature"),
        ({"extra_body": {"no_such": 1}}, "no_such"),
        ({"extra_body": {"carpool": {"top_k": 0}}}, "top_k"),
        ({"extra_body": {"carpool": {"top_k": 0}}, "stream": True}, "top_k"),
    ],
)
def test_what_cannot_be_had_is_refused_by_name(
    sdk: openai.OpenAI, given: dict[str, Any], param: str
) -> None:
    with pytest.raises(openai.BadRequestError) as raised:
        sdk.responses.create(model="carpool", input="How high?", **given)
    assert raised.value.param == param and param in str(raised.value)


def test_what_asks_for_nothing_is_taken(sdk: openai.OpenAI, responder: Responder) -> None:
    responder.reply = lambda query, source: [whole(query, source)]
    made = sdk.responses.create(
        model="carpool",
        input="How high?",
        store=False,
        background=False,
        top_p=1,
        truncation="auto",
    )
    assert made.model_extra is not None and made.model_extra["store"] is False


def test_models_are_listed_and_others_are_not_found(sdk: openai.OpenAI) -> None:
    assert {"carpool", "carpool/multistep"} <= {each.id for each in sdk.models.list()}
    assert sdk.models.retrieve("carpool/multistep").owned_by == "carpool"
    for call in (
        lambda: sdk.models.retrieve("gpt-9"),
        lambda: sdk.responses.create(model="gpt-9", input="Why?"),
    ):
        with pytest.raises(openai.NotFoundError, match="gpt-9"):
            call()


def test_an_answer_that_is_none_is_an_error_that_says_whether_to_retry(
    sdk: openai.OpenAI, responder: Responder
) -> None:
    def expired(query: Query, source: Source) -> list[Record]:
        error = AnswerError(type="expired", message="too late", retryable=False, stage="searcher")
        return [answer_to(query, source, status="expired", error=error)]

    responder.reply = expired
    with pytest.raises(openai.InternalServerError, match="too late") as raised:
        sdk.responses.create(model="carpool", input="How high?")
    assert raised.value.status_code == 504
    assert raised.value.response.headers["x-should-retry"] == "false"


def test_a_retry_takes_over_the_question_whose_client_is_gone(
    address: tuple[str, str], responder: Responder
) -> None:
    base_url, key = address
    text, go = f"once {time.time()}", threading.Event()

    def slow(query: Query, source: Source) -> list[Record]:
        if query.text == text:
            go.wait(20)
        return [whole(query, source)]

    responder.reply = slow
    client = openai.OpenAI(base_url=base_url, api_key=key, max_retries=2, timeout=0.8)
    threading.Timer(1.5, go.set).start()
    with client:
        assert client.responses.create(model="carpool", input=text).output_text == TEXT
    assert [query.text for query in responder.seen].count(text) == 1


def test_a_wrong_key_a_forged_host_and_another_origin_are_refused(
    address: tuple[str, str], sdk: openai.OpenAI
) -> None:
    for headers, status in (
        ({"Authorization": "Bearer cpk-wrong"}, 401),
        ({"Host": "evil.example"}, 421),
        ({"Origin": "https://evil.example"}, 403),
    ):
        with pytest.raises(openai.APIStatusError) as raised:
            sdk.models.list(extra_headers=headers)
        assert raised.value.status_code == status


def test_a_link_of_a_citation_shows_its_passage_and_no_other_without_a_key(
    sdk: openai.OpenAI, responder: Responder
) -> None:
    def reply(query: Query, source: Source) -> list[Record]:
        passages = (FetchedPassage(n=1, text="<b>300 m</b>"),)
        fetched = tuple(Fetched(id=name, count=1, passages=passages) for name in query.fetch)
        return [answer_to(query, source, fetched=fetched) if fetched else whole(query, source)]

    responder.reply = reply
    made = sdk.chat.completions.create(
        model="carpool", messages=[{"role": "user", "content": "How high?"}]
    )
    _, link = made.choices[0].message.annotations or ()
    shown = httpx2.get(link.url_citation.url)
    assert (shown.status_code, shown.text) == (200, "<b>300 m</b>")
    assert shown.headers["content-type"].startswith("text/plain")
    for forged in (link.url_citation.url[:-1], link.url_citation.url.replace("b.md", "c.md")):
        assert httpx2.get(forged).status_code == 401


def test_a_stream_in_progress_ends_whole_after_a_sigterm(
    responder: Responder, tmp_path: Path
) -> None:
    go = threading.Event()

    def slow(query: Query, source: Source) -> list[Record]:
        go.wait(20)
        return [whole(query, source)]

    responder.reply = slow
    with started(responder.bootstrap, tmp_path) as (process, base_url, key):
        client = openai.OpenAI(base_url=base_url, api_key=key, max_retries=0)
        stream = client.responses.create(model="carpool", input="How high?", stream=True)
        assert next(stream).type == "response.created"
        process.terminate()
        time.sleep(1.0)
        go.set()
        assert list(stream)[-1].type == "response.completed"


def test_one_idempotency_key_is_one_question(sdk: openai.OpenAI, responder: Responder) -> None:
    ids, name = list[str](), {"Idempotency-Key": f"k {time.time()}"}

    def reply(query: Query, source: Source) -> list[Record]:
        ids.append(query.query_id)
        return [whole(query, source)]

    responder.reply = reply
    for _ in range(2):
        sdk.responses.create(model="carpool", input="How high?", extra_headers=name)
    sdk.responses.create(model="carpool", input="How high?", extra_headers={"Idempotency-Key": ""})
    assert len(set(ids[:2])) == 1 and len(set(ids)) == 2


def test_a_client_that_goes_away_withdraws_its_question(
    address: tuple[str, str], responder: Responder
) -> None:
    base_url, key = address
    responder.reply = lambda query, source: []
    client = openai.OpenAI(base_url=base_url, api_key=key, max_retries=0, timeout=0.5)
    with client, pytest.raises(openai.APITimeoutError):
        client.responses.create(model="carpool", input="gone")
    asked = wait_until(
        lambda: next((query for query in responder.seen if query.text == "gone"), None),
        "it is asked",
    )

    def is_withdrawn() -> bool:
        keys = [message.key for message in read_to_end(responder.bootstrap, CANCELS.name)]
        return asked is not None and asked.query_id.encode() in keys

    wait_until(is_withdrawn, "the question is withdrawn")
