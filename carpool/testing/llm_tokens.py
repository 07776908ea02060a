"""The tokens and the chat template of the LLM stand-in: simple, reversible, without a vocabulary.

Text is cut as tokenizers of the GPT-4 family cut it (letters with the space before them, digits,
punctuation with the line breaks after it, white space by what follows it), then into three bytes a
token. So text that is tokenized in parts gives other ids than the whole, where a cut is wrong.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

SPECIAL = ("<|im_start|>", "<|im_end|>")
BYTES_PER_TOKEN = 3
_SPECIALS = re.compile("(" + "|".join(map(re.escape, SPECIAL)) + ")")
_PIECE = re.compile(r" ?[^\W\d_]+| ?\d| ?(?:[^\s\w]|_)+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
_MESSAGE = re.compile(r"<\|im_start\|>(\w+)\n(.*?)<\|im_end\|>\n", re.DOTALL)


def encode(text: str) -> list[int]:
    """Returns the ids of `text`; a special token is one id, its place in `SPECIAL`."""
    ids: list[int] = []
    for part in _SPECIALS.split(text):
        if part in SPECIAL:
            ids.append(SPECIAL.index(part))
            continue
        for piece in _PIECE.findall(part):
            data = piece.encode("utf-8", "surrogatepass")
            ids += (
                int.from_bytes(b"\x01" + data[begin : begin + BYTES_PER_TOKEN], "big")
                for begin in range(0, len(data), BYTES_PER_TOKEN)
            )
    return ids


def decode(ids: Iterable[int]) -> str:
    """Returns the text of `ids`. Raises `ValueError` for an id that is none."""
    data = b""
    for id in ids:
        if 0 <= id < len(SPECIAL):
            data += SPECIAL[id].encode()
        elif 0x100 <= id < 0x200_0000:
            data += id.to_bytes(4, "big").lstrip(b"\x00")[1:]
        else:
            raise ValueError(f"{id} is no token id")
    return data.decode("utf-8", "surrogatepass")


def render(messages: Sequence[Mapping[str, Any]]) -> str:
    """Returns the text of a chat in the form ChatML, up to where the answer begins."""
    turns = (
        f"<|im_start|>{message.get('role', 'user')}\n{message.get('content', '')}<|im_end|>\n"
        for message in messages
    )
    return "".join(turns) + "<|im_start|>assistant\n"


def messages_of(text: str) -> list[dict[str, Any]]:
    """Returns the messages of a rendered chat; for another text, one message with all of it."""
    found = [{"role": role, "content": content} for role, content in _MESSAGE.findall(text)]
    return found or [{"role": "user", "content": text}]
