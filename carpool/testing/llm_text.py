"""The texts of the LLM stand-in, made from the prompt only."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

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


def write(prompt: str) -> str:
    """Returns a sentence, with a citation where the prompt has numbered passages."""
    number = cited_number(prompt)
    digest = hashlib.sha256(prompt.encode()).hexdigest()[:8]
    cited = f" [{number}]." if number else "."
    return f"{NAME} read {len(words(prompt))} words of prompt {digest}{cited}"
