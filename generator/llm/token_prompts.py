"""Prompts as token ids: a head, the segments of the user's message, and a tail.

Head and tail are what the model's chat template writes around the user's message, as the server
renders it. Segments are tokenized by the server, each alone, and kept in memory by their text. For
each template a sample is compared with the server's rendering of the whole chat, so that the ids of
a prompt are those that the server would have made of its text.

A segment begins after a line break, with a character that is no white space. It is tokenized
between a line break and a bracket, which are then cut off: tokenizers of the GPT family read white
space by what follows it, and some join punctuation with the line breaks behind it; those of the
SentencePiece family write a space before a text. None joins a line break with what follows.
"""

from __future__ import annotations

import asyncio
from array import array
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, TypeAlias

TokenIds: TypeAlias = Sequence[int]
Tokenize: TypeAlias = Callable[[Mapping[str, Any]], Awaitable[TokenIds]]
"""Asks the server for the ids of `{"prompt": text}` or of `{"messages": [...]}`, with options."""

BEFORE = "\n"
AFTER = "["
SAMPLE = (
    "[1] Zürich, 1998: It has 1,642 m of “tracks” — about 20%!\n\n",
    '[2] "Moby-Dick": by Herman Melville (1851)\n\n',
    "[3] 東京タワー: 高さ333メートル。 It's 3.5 km away… 👍🏽\n\n",
    "[4] : no title, no end\n\n",
    "Question: Why?\n\n  Or “when”,\r\nin 2024/25?\n\nAnswer in one full sentence.",
)
"""Passages and a question with what tokenizers treat in different ways."""
OTHER = "Why?"
"""A user's message that begins in another way than the sample."""
REQUESTS_MAX = 16
"""Requests for segments at the same time: a burst must not take the server's connections."""


class CannotTokenize(Exception):
    """Prompts, or those of one template, are sent as chat text; the message says why."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Frame:
    """The ids before and after the segments of one template."""

    head: tuple[int, ...]
    tail: tuple[int, ...]


class PromptTokenizer:
    """The ids of prompts, by requests to the server. For one event loop.

    Raises `CannotTokenize`, and what `tokenize` raises. Keeps the ids of `segments_max` segments,
    those that were used last, and asks for a segment once, however many prompts wait for it.
    """

    def __init__(self, tokenize: Tokenize, *, segments_max: int) -> None:
        self._tokenize = tokenize
        self._segments_max = segments_max
        self._kept: OrderedDict[str, array[int]] = OrderedDict()
        self._asked: dict[str, asyncio.Task[array[int]]] = {}
        self._frames: dict[tuple[str, str], Frame | CannotTokenize] = {}
        self._learning = asyncio.Lock()
        self._slots = asyncio.Semaphore(REQUESTS_MAX)

    async def ids(self, system: str, segments: Sequence[str]) -> tuple[int, ...]:
        """Returns the ids of a chat. `segments`: the user's message, cut; see `FilledPrompt`."""
        begin, *rest = segments
        frame = await self.frame(system, begin)
        return _joined(frame, await self._of_segments(rest))

    async def prefix(self, system: str, segments: Sequence[str]) -> tuple[int, ...]:
        """Returns the ids with which every chat begins whose message begins with `segments`."""
        begin, *rest = segments
        frame = await self.frame(system, begin)
        # The next segments are not known, and must not be empty: see `_of_segments`.
        return (*frame.head, *_flat((await self._of_segments([*rest, OTHER]))[:-1]))

    async def frame(self, system: str, begin: str) -> Frame:
        """Returns head and tail of the messages that begin so; asks the server the first time."""
        async with self._learning:
            frame = self._frames.get((system, begin))
            if frame is None:
                try:
                    frame = await self._learn(system, begin)
                except CannotTokenize as error:
                    frame = error
                self._frames[(system, begin)] = frame
        if isinstance(frame, CannotTokenize):
            raise frame
        return frame

    def forget(self) -> None:
        """Asks anew for everything: another server may answer."""
        self._frames.clear()
        self._kept.clear()

    async def close(self) -> None:
        """Cancels the requests for segments."""
        tasks = tuple(self._asked.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _learn(self, system: str, begin: str) -> Frame:
        """Finds head and tail between two renderings, and compares a sample with the server."""
        whole, other, segments, other_segments = await asyncio.gather(
            self._of_chat(system, begin + "".join(SAMPLE)),
            self._of_chat(system, begin + OTHER),
            self._of_segments(SAMPLE),
            self._of_segments([OTHER]),
        )
        equal = takewhile(lambda pair: pair[0] == pair[1], zip(whole, other, strict=False))
        head = tuple(id for id, _ in equal)
        end = len(head) + len(other_segments[0])
        frame = Frame(head=head, tail=tuple(other[end:]))
        if not head or not frame.tail or _joined(frame, other_segments) != tuple(other):
            raise CannotTokenize(
                "the chat template changes the user's message, or the tokenizer joins it with the "
                "text around it"
            )
        if _joined(frame, segments) != tuple(whole):
            raise CannotTokenize(
                "the ids of a sample are not those of the whole chat: the tokenizer joins text "
                "across line breaks"
            )
        return frame

    async def _of_chat(self, system: str, user: str) -> TokenIds:
        messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
        return await self._tokenize({"messages": messages, "add_generation_prompt": True})

    async def _of_segments(self, segments: Sequence[str]) -> list[array[int]]:
        """Returns the ids of each segment; the last one ends the message, and nothing follows."""
        before, *found = await asyncio.gather(
            self._of_text(BEFORE),
            *(self._of_text(BEFORE + segment + AFTER) for segment in segments[:-1]),
            *(self._of_text(BEFORE + segment) for segment in segments[-1:]),
        )
        ends = [-1] * (len(found) - 1) + [None]
        if any(ids[: len(before)] != before for ids in found):
            raise CannotTokenize("the tokenizer joins a line break with what follows")
        return [ids[len(before) : end] for ids, end in zip(found, ends, strict=True)]

    async def _of_text(self, text: str) -> array[int]:
        kept = self._kept.get(text)
        if kept is not None:
            self._kept.move_to_end(text)
            return kept
        task = self._asked.get(text)
        if task is None:
            task = self._asked[text] = asyncio.create_task(self._ask(text))
        # A prompt that is cancelled does not take the segment away from others that wait for it.
        return await asyncio.shield(task)

    async def _ask(self, text: str) -> array[int]:
        try:
            async with self._slots:
                reply = await self._tokenize({"prompt": text, "add_special_tokens": False})
            ids = self._kept[text] = array("q", reply)
        finally:
            del self._asked[text]
        if len(self._kept) > self._segments_max:
            self._kept.popitem(last=False)
        return ids


def _joined(frame: Frame, segments: Sequence[array[int]]) -> tuple[int, ...]:
    return (*frame.head, *_flat(segments), *frame.tail)


def _flat(segments: Sequence[array[int]]) -> Iterator[int]:
    return (id for segment in segments for id in segment)
