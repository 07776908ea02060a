"""What Open WebUI reads of a chat stream, beside what strict clients read."""

from __future__ import annotations

from typing import Any

import openai

from gateway.plan.objects import AddressOf
from gateway.plan.sources import NOT_CITED, source_event
from schemas.answer import Answer, Citation, Retrieved
from tests.gateway.test_sdk import CITATIONS, TEXT, in_pieces
from tests.producers.responder import Responder
from tests.records import an_answer

ADDRESS_OF: AddressOf = "https://rag.example.org/passages/{}".format


def answer_with(*citations: Citation, found: str = "abc") -> Answer:
    retrieved = tuple(Retrieved(id=name, score=0.5) for name in found)
    return an_answer("q", citations=citations, retrieved=retrieved)


def shown(event: Any) -> list[tuple[str, list[str]]]:
    """The name and the texts of each source, as `Citations.svelte` of Open WebUI 0.12.4 has it."""
    sources = dict[str, tuple[str, list[str]]]()
    data = event["data"]
    for text, metadata in zip(data["document"], data["metadata"], strict=True):
        sources.setdefault(metadata["source"], (metadata["name"], []))[1].append(text)
    return list(sources.values())


def test_the_last_chunk_has_the_texts_of_the_sources_and_the_sdk_takes_it(
    sdk: openai.OpenAI, responder: Responder
) -> None:
    responder.reply = in_pieces(responder, [TEXT])
    messages: Any = [{"role": "user", "content": "How high?"}]
    chunks = list(sdk.chat.completions.create(model="carpool", messages=messages, stream=True))
    events = [each.model_extra["event"] for each in chunks if "event" in (each.model_extra or {})]
    last = chunks[-1].model_extra
    assert len(events) == 1 and last is not None and last["event"] is events[0]
    assert events[0]["type"] == "source"
    assert [name for name, _ in shown(events[0])] == ["Bridge", CITATIONS[1].doc_id]


def test_a_marker_opens_the_passage_of_its_number() -> None:
    event = source_event(
        answer_with(
            Citation(n=3, doc_id="c", title="C", snippet="Third.", url="https://x.org"),
            Citation(n=1, doc_id="a", title="A", snippet="First.", url="https://x.org"),
            Citation(n=3, doc_id="c", title="C", snippet="More.", url="https://x.org"),
            Citation(n=3, doc_id="c", title="C", snippet="More.", url="https://x.org"),
        ),
        ADDRESS_OF,
    )
    assert shown(event) == [("A", ["First."]), ("b", [NOT_CITED]), ("C", ["Third.", "More."])]


def test_numbers_that_are_not_those_of_the_search_get_no_places() -> None:
    far = Citation(n=10**9, doc_id="z", snippet="Z.")
    assert shown(source_event(answer_with(far), ADDRESS_OF)) == [("z", ["Z."])]


def test_without_a_citation_there_is_no_event() -> None:
    assert source_event(answer_with(), ADDRESS_OF) is None
