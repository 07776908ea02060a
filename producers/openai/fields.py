"""Every field of OpenAI's two requests: what becomes of it here. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

Kind: TypeAlias = Literal["used", "harmless", "refused"]


class BadRequest(ValueError):
    """A request that is refused. `param`: the name of the field; `code`: a word for programs."""

    def __init__(self, message: str, *, param: str | None = None, code: str = "invalid_value"):
        super().__init__(message)
        self.param, self.code = param, code


@dataclass(frozen=True, kw_only=True, slots=True)
class Field:
    """used: it shapes the answer. harmless: it cannot. refused, except values that ask for nothing.

    `nothing`: these values; null is always one. `why`: it is refused.
    """

    kind: Kind
    nothing: tuple[Any, ...] = ()
    why: str = ""


USED, HARMLESS = Field(kind="used"), Field(kind="harmless")
NO_STATE = "nothing is stored: send all messages with each request"
NO_SAMPLING = "the model samples by `temperature` and `seed` alone"
NO_TOOLS = "the only tool is file_search, of /v1/responses"
ONE_TEXT = "an answer is one text"


def refused(why: str, *nothing: Any) -> Field:
    """Returns the field that is refused, but for these values."""
    return Field(kind="refused", nothing=nothing, why=why)


BOTH: Mapping[str, Field] = {
    "carpool": USED,
    "metadata": HARMLESS,
    "model": USED,
    "moderation": refused("nothing is moderated"),
    "parallel_tool_calls": HARMLESS,
    "prompt_cache_key": HARMLESS,
    "prompt_cache_options": HARMLESS,
    "prompt_cache_retention": HARMLESS,
    "safety_identifier": HARMLESS,
    "service_tier": HARMLESS,
    "store": refused(NO_STATE, False),
    "stream": USED,
    "stream_options": USED,
    "temperature": USED,
    "top_logprobs": refused(ONE_TEXT, 0),
    "top_p": refused(NO_SAMPLING, 1),
    "user": HARMLESS,
}
RESPONSE_FIELDS: Mapping[str, Field] = {
    **BOTH,
    "access_programs": refused("there are no such programs"),
    "background": refused(NO_STATE, False),
    "context_management": refused(NO_STATE, []),
    "conversation": refused(NO_STATE),
    "image": refused(ONE_TEXT),
    "include": USED,
    "input": USED,
    "instructions": USED,
    "max_output_tokens": USED,
    "max_tool_calls": HARMLESS,
    "previous_response_id": refused(NO_STATE),
    "prompt": refused("templates of prompts are files of the generator"),
    "reasoning": HARMLESS,
    "text": USED,
    "tool_choice": refused(
        "every answer is searched for", "auto", "required", {"type": "file_search"}
    ),
    "tools": USED,
    "truncation": HARMLESS,
}
CHAT_FIELDS: Mapping[str, Field] = {
    **BOTH,
    "audio": refused(ONE_TEXT),
    "frequency_penalty": refused(NO_SAMPLING, 0),
    "function_call": refused(NO_TOOLS, "none", "auto"),
    "functions": refused(NO_TOOLS, []),
    "logit_bias": refused(NO_SAMPLING, {}),
    "logprobs": refused(ONE_TEXT, False),
    "max_completion_tokens": USED,
    "max_tokens": USED,
    "messages": USED,
    "modalities": refused(ONE_TEXT, ["text"]),
    "n": refused(ONE_TEXT, 1),
    "prediction": HARMLESS,
    "presence_penalty": refused(NO_SAMPLING, 0),
    "reasoning_effort": HARMLESS,
    "response_format": refused(ONE_TEXT, {"type": "text"}),
    "seed": USED,
    "stop": refused("an answer ends where the model ends it", []),
    "tool_choice": refused(NO_TOOLS, "none", "auto"),
    "tools": refused(NO_TOOLS, []),
    "verbosity": HARMLESS,
    "web_search_options": refused("nothing is searched but the corpus"),
}


def check_fields(body: Mapping[str, Any], fields: Mapping[str, Field]) -> None:
    """Raises `BadRequest` for the first field that is unknown, or asks for what cannot be had."""
    for name, value in body.items():
        if (field := fields.get(name)) is None:
            raise BadRequest(
                f"{name}: this gateway does not know this field", param=name, code="unknown_field"
            )
        if field.kind == "refused" and value is not None and not _is_in(value, field.nothing):
            raise BadRequest(
                f"{name}: {field.why}; leave it out", param=name, code="unsupported_value"
            )


def _is_in(value: Any, values: tuple[Any, ...]) -> bool:
    """Returns whether a value is one of these; True is not 1."""
    return any(
        value == each and isinstance(value, bool) == isinstance(each, bool) for each in values
    )
