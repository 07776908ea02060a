"""Turns an answer into OpenAI's objects. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from producers.openai.questions import OpenAIQuestion
from schemas.answer import Answer, Citation

Object: TypeAlias = dict[str, Any]
AddressOf: TypeAlias = Callable[[str], str]
"""Returns the address of a passage, by its id."""

LINKS = ("http://", "https://")


def response_object(
    asked: OpenAIQuestion,
    response_id: str,
    created_s: int,
    *,
    status: str = "in_progress",
    output: Sequence[Object] = (),
    answer: Answer | None = None,
    error: Object | None = None,
) -> Object:
    """Returns a `response`; without an `answer`, of one that is in progress or has failed."""
    is_cut = status == "incomplete"
    return {
        "id": response_id,
        "object": "response",
        "created_at": created_s,
        "status": status,
        "background": False,
        "error": error,
        "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
        "instructions": None,
        "max_output_tokens": None,
        "metadata": {},
        "model": asked.model,
        "output": list(output),
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "service_tier": "default",
        "store": False,
        "temperature": 0.0,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "truncation": "disabled",
        "usage": None if answer is None else _usage(answer),
        **asked.shown,
        **({} if answer is None else {"carpool": record_of(answer)}),
    }


def status_of(answer: Answer) -> str:
    """Returns the status of the response of an answer that has a text."""
    return "incomplete" if answer.finish_reason == "length" else "completed"


def output_items(
    asked: OpenAIQuestion, answer: Answer, response_id: str, address_of: AddressOf
) -> list[Object]:
    """Returns the search, if the request has the tool, and the message."""
    items = [search_item(asked, answer, response_id)] if asked.has_search else []
    return [*items, message_item(answer, response_id, address_of)]


def search_item(asked: OpenAIQuestion, answer: Answer | None, response_id: str) -> Object:
    """Returns the item of the search; without an `answer`, while it searches."""
    item: Object = {
        "id": item_id("fs", response_id),
        "type": "file_search_call",
        "status": "searching" if answer is None else "completed",
        "queries": [asked.text] if answer is None else _queries(asked, answer),
        "results": None,
    }
    if answer is not None and asked.has_results:
        item["results"] = [
            {
                "file_id": found.id,
                "filename": found.title or found.id,
                "score": min(1.0, max(0.0, found.score)),
                "text": found.text,
                "attributes": _attributes(found.metadata),
            }
            for found in answer.passages
        ]
    return item


def message_item(answer: Answer | None, response_id: str, address_of: AddressOf) -> Object:
    """Returns the item of the message; without an `answer`, before its text."""
    is_whole = answer is not None and status_of(answer) == "completed"
    return {
        "id": item_id("msg", response_id),
        "type": "message",
        "role": "assistant",
        "status": "in_progress" if answer is None else "completed" if is_whole else "incomplete",
        "content": [] if answer is None else [text_part(answer, address_of)],
    }


def text_part(answer: Answer, address_of: AddressOf) -> Object:
    """Returns the text of an answer, with all of its annotations."""
    return {
        "type": "output_text",
        "text": answer.answer or "",
        "annotations": [*_links(answer, address_of), *_files(answer)],
        "logprobs": [],
    }


def item_id(kind: str, response_id: str) -> str:
    """Returns the id of an item of a response."""
    return f"{kind}_{response_id.partition('_')[2]}"


def chat_object(
    asked: OpenAIQuestion, chat_id: str, created_s: int, answer: Answer, address_of: AddressOf
) -> Object:
    """Returns a `chat.completion`."""
    message = {
        "role": "assistant",
        "content": answer.answer or "",
        "refusal": None,
        "annotations": chat_annotations(answer, address_of),
    }
    choice = {
        "index": 0,
        "message": message,
        "finish_reason": finish_reason_of(answer),
        "logprobs": None,
    }
    return {
        "id": chat_id,
        "object": "chat.completion",
        "created": created_s,
        "model": asked.model,
        "choices": [choice],
        "usage": chat_usage(answer),
        "service_tier": "default",
        **asked.shown,
        "carpool": record_of(answer),
    }


def chat_annotations(answer: Answer, address_of: AddressOf) -> list[Object]:
    """Returns the links of an answer, as a chat message has them."""
    links = [dict(link) for link in _links(answer, address_of)]
    return [{"type": link.pop("type"), "url_citation": link} for link in links]


def finish_reason_of(answer: Answer) -> str:
    """Returns why the text of an answer ends."""
    return "length" if answer.finish_reason == "length" else "stop"


def chat_usage(answer: Answer) -> Object:
    """Returns the tokens of an answer, as a chat completion has them."""
    usage = _usage(answer)
    return {
        "prompt_tokens": usage["input_tokens"],
        "completion_tokens": usage["output_tokens"],
        "total_tokens": usage["total_tokens"],
        "prompt_tokens_details": {"cached_tokens": usage["input_tokens_details"]["cached_tokens"]},
    }


def record_of(answer: Answer) -> Object:
    """Returns our whole record, without texts that the object has."""
    lean = msgspec.structs.replace(answer, answer=None, passages=())
    found: Object = msgspec.to_builtins(lean, str_keys=True)
    return found


def _usage(answer: Answer) -> Object:
    used = answer.usage
    read, written = (0, 0) if used is None else (used.input_tokens, used.output_tokens)
    cached = 0 if used is None else min(used.cached_tokens, read)
    return {
        "input_tokens": read,
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
        "output_tokens": written,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": read + written,
    }


def _queries(asked: OpenAIQuestion, answer: Answer) -> list[str]:
    return [step.text for step in answer.steps if step.kind == "retrieve"] or [asked.text]


def _attributes(metadata: Mapping[str, Any] | None) -> Object:
    return {
        name: value
        for name, value in (metadata or {}).items()
        if isinstance(value, str | int | float | bool)
    }


def _links(answer: Answer, address_of: AddressOf) -> list[Object]:
    """Returns a link for each citation that has a place in the text; spans are code points."""
    found = []
    for citation in answer.citations:
        if (span := _span(citation)) is None:
            continue
        found.append(
            {
                "type": "url_citation",
                "start_index": span[0],
                "end_index": span[1],
                "title": citation.title or citation.doc_id,
                "url": address(citation.url, citation.doc_id, address_of),
            }
        )
    return found


def address(url: Any, passage_id: str, address_of: AddressOf) -> str:
    """Returns the link of a passage: its `url`, or its address here."""
    is_link = isinstance(url, str) and url.startswith(LINKS)
    return str(url) if is_link else address_of(passage_id)


def _files(answer: Answer) -> list[Object]:
    return [
        {
            "type": "file_citation",
            "file_id": citation.doc_id,
            "filename": citation.title or citation.doc_id,
            "index": span[0],
        }
        for citation in answer.citations
        if (span := _span(citation)) is not None
    ]


def _span(citation: Citation) -> tuple[int, int] | None:
    """Returns where the marker is; without one, the sentence."""
    if citation.start is not None and citation.end is not None:
        return citation.start, citation.end
    sentence = citation.sentence
    return None if sentence is None else (sentence.start, sentence.end)
