"""The texts and JSON objects of the LLM stand-in, made from the prompt only."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

NAME = "carpool-llm-stand-in"
_NUMBERED = re.compile(r"^\[(\d+)\]", re.MULTILINE)
_WORD = re.compile(r"\S+\s*|\s+")


def words(text: str) -> list[str]:
    """Returns the stand-in's tokens: words with trailing space; joined they equal `text`."""
    return _WORD.findall(text)


def prompt_text(messages: Sequence[Mapping[str, Any]]) -> str:
    """Returns the texts of the messages, one after the other."""
    return "\n".join(str(message.get("content", "")) for message in messages)


def prompt_hash(messages: Sequence[Mapping[str, Any]]) -> str:
    """Returns the name of a prompt: the SHA-256 of its messages' texts, joined by NUL."""
    return hashlib.sha256(
        "\0".join(str(message.get("content", "")) for message in messages).encode()
    ).hexdigest()


def cited_number(prompt: str) -> int | None:
    """Returns the number of one numbered passage of `prompt`; None if it has none."""
    numbers = [int(number) for number in _NUMBERED.findall(prompt)]
    if not numbers:
        return None
    return numbers[int(hashlib.sha256(prompt.encode()).hexdigest(), 16) % len(numbers)]


def write(prompt: str, response_format: Mapping[str, Any] | None) -> str:
    """Returns a sentence, or an object that is valid under the requested JSON schema."""
    number = cited_number(prompt)
    digest = hashlib.sha256(prompt.encode()).hexdigest()[:8]
    cited = f" [{number}]." if number else "."
    sentence = f"{NAME} read {len(words(prompt))} words of prompt {digest}{cited}"
    if not response_format or response_format.get("type") not in ("json_schema", "json_object"):
        return sentence
    if response_format["type"] == "json_object":  # the object that the prompt asks for
        value = {"answer": sentence, "citations": [] if number is None else [number]}
        return msgspec.json.encode(value).decode()
    schema = response_format.get("json_schema", {}).get("schema", {})
    return msgspec.json.encode(_instance(schema, sentence, number)).decode()


def _instance(schema: Mapping[str, Any], sentence: str, number: int | None) -> Any:
    """Returns a value that is valid under the part of JSON Schema that structured output uses."""
    choices = schema.get("enum")
    if choices:
        return number if number in choices else choices[0]
    match schema.get("type"):
        case "object":
            return {
                name: _instance(part, sentence, number)
                for name, part in schema.get("properties", {}).items()
            }
        case "array":
            length = min(max(schema.get("minItems", 0), 1), schema.get("maxItems", 1))
            return [_instance(schema.get("items", {}), sentence, number)] * length
        case "integer" | "number":
            return max(number or 0, schema.get("minimum", 0))
        case "boolean":
            return True
        case "null":
            return None
        case _:
            return sentence[: schema.get("maxLength", len(sentence))]
