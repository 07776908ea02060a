"""Fills a prompt template with passages, within a limit of characters. Deterministic.

Passages come before the question, in the order of the hits. So prompts that share their first
passages share a prefix, and with it the server's KV cache.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from carpool.errors import ConfigError
from generator.plan.control_tokens import as_plain_text
from generator.plan.quote import PASSAGE_CHARS_MAX, choose_quote
from generator.plan.sentences import sentence_spans
from schemas.errors import RecordError
from schemas.retrieval import Hit

PLACEHOLDERS = {
    "system": frozenset[str](),
    "user": frozenset({"passages", "question"}),
    "passage": frozenset({"n", "title", "text"}),
    "nothing_found": frozenset[str](),
}
"""The sections of a template, each with the placeholders that it must use and may use."""
_HEADING = re.compile(r"^\[(\w+)\]$", re.MULTILINE)
_PLACEHOLDER = re.compile(r"\{\{(\w+)\}\}")
PASSAGE_SEPARATOR = "\n\n"


@dataclass(frozen=True, kw_only=True, slots=True)
class Template:
    """The parts of a prompt; `nothing_found` replaces the passages when there are none."""

    system: str
    user: str
    passage: str
    nothing_found: str


@dataclass(frozen=True, kw_only=True, slots=True)
class FilledPrompt:
    """The messages to send. They contain the first `passages` passages, numbered from 1.

    `segments` together are `user`: its begin, which is the same in every prompt of the template and
    may be empty; the passages, each alone; the question; and the end. Every cut is after a line
    break and before a character that is no white space, because no tokenizer joins text there.
    """

    system: str
    user: str
    passages: int
    segments: tuple[str, ...] = ()

    def sha256(self) -> str:
        """Returns the hash of this prompt, for an answer's provenance."""
        return hashlib.sha256(f"{self.system}\0{self.user}".encode("utf-8", "replace")).hexdigest()


def parse_template(name: str, content: str) -> Template:
    """Returns the template with the sections `[system]`, `[user]`, `[passage]`, `[nothing_found]`.

    Text before the first section is a comment. Raises `ConfigError` that names what is missing or
    unknown.
    """
    _, *rest = _HEADING.split(content)
    sections = {heading: text.strip() for heading, text in zip(rest[::2], rest[1::2], strict=True)}
    problems = [
        f"section [{section}] is missing" for section in PLACEHOLDERS if section not in sections
    ]
    for section, text in sections.items():
        if section not in PLACEHOLDERS:
            known = ", ".join(PLACEHOLDERS)
            problems.append(f"section [{section}] is not known; there are: {known}")
            continue
        used = set(_PLACEHOLDER.findall(text))
        problems += [
            f"[{section}] does not use {{{{{one}}}}}"
            for one in sorted(PLACEHOLDERS[section] - used)
        ]
        problems += [
            f"[{section}] cannot use {{{{{one}}}}}" for one in sorted(used - PLACEHOLDERS[section])
        ]
    if problems:
        raise ConfigError(
            f"the prompt template {name!r} cannot be used: {'; '.join(problems)}. See `cited.txt`."
        )
    return Template(**sections)


def fill(
    template: Template,
    question: str,
    hits: Sequence[Hit],
    *,
    passages_max: int,
    passage_chars_max: int,
    prompt_chars_max: int,
) -> FilledPrompt:
    """Returns the prompt: the whole question, and the passages of the first hits that fit.

    Of a long passage the part that fits the question is taken (`fitting_part`). Control tokens of
    models become plain text. Raises `RecordError` if the question alone does not fit.
    """
    question = as_plain_text(question.strip())
    bare = len(template.system) + len(_put(template.user, passages="", question=question))
    left = prompt_chars_max - bare - len(template.nothing_found)
    if left < 0:
        raise RecordError(
            "too_large",
            f"the question is {len(question)} characters; with its template it does not fit into a "
            f"prompt of {prompt_chars_max} characters (prompt_chars_max)",
            field="$.text",
        )
    shown: list[str] = []
    for hit in hits[:passages_max]:
        text = _put(
            template.passage,
            n=str(len(shown) + 1),
            title=one_line(hit.title, passage_chars_max),
            text=fitting_part(question, hit.text, passage_chars_max),
        )
        left -= len(text) + len(PASSAGE_SEPARATOR)
        if left < 0:
            break
        shown.append(text)
    segments = _segments(template, shown, question)
    return FilledPrompt(
        system=template.system, user="".join(segments), passages=len(shown), segments=segments
    )


def _segments(template: Template, shown: Sequence[str], question: str) -> tuple[str, ...]:
    """Returns the filled message of the user, cut; see `FilledPrompt`."""
    bodies = shown or (template.nothing_found,)
    passages = [f"{body}{PASSAGE_SEPARATOR}" for body in bodies[:-1]] + [bodies[-1]]
    fills = {"passages": passages, "question": [question]}
    user, wished = "", []
    for place, part in enumerate(_PLACEHOLDER.split(template.user)):
        for text in fills[part] if place % 2 else ():
            wished.append(len(user))
            user += text
        if place % 2:
            wished.append(len(user))
        else:
            user += part
    cuts = sorted({_cut_at(user, place) for place in wished})
    return tuple(user[begin:end] for begin, end in pairwise((0, *cuts, len(user))))


def _cut_at(text: str, place: int) -> int:
    """Returns where the line begins that the first character at or after `place` is in.

    If the line begins with white space or is empty: where an earlier line begins.
    """
    rest = text[place:].lstrip()
    cut = text.rfind("\n", 0, len(text) - len(rest) if rest else place) + 1
    while cut > 0 and not text[cut : cut + 1].strip():
        cut = text.rfind("\n", 0, cut - 1) + 1
    return cut


def _put(template: str, **values: str) -> str:
    """Fills placeholders in one pass, so a placeholder in a question or passage is not filled."""
    return _PLACEHOLDER.sub(lambda match: values[match[1]], template)


def fitting_part(question: str, text: str, chars_max: int) -> str:
    """Returns a passage as one line: all of it if it fits, else the part around its quote.

    The part begins with a sentence, at or after a multiple of a third of its length. So questions
    share the few parts of a passage, and a server's prefix cache has more of them. O(n).
    """
    line = one_line(text, max(chars_max, PASSAGE_CHARS_MAX))
    if len(line) <= chars_max:
        return line
    third = max(1, chars_max // 3)
    quote = choose_quote(question, [("", line)], chars_max=third)
    assert quote is not None, "a line that is too long has words"
    floor = min((quote.start // third - 1) * third, len(line) - chars_max)
    starts = (start for start, _ in sentence_spans(line) if floor <= start <= quote.start)
    return one_line(line[next(starts, quote.start) :], chars_max)


def one_line(text: str, chars_max: int) -> str:
    """Returns `text` as one line, so no passage looks like two, cut at the last word that fits."""
    line = as_plain_text(" ".join(text[: 4 * chars_max].split()))
    if len(line) <= chars_max:
        return line
    cut = line[: chars_max + 1].rpartition(" ")[0]
    return cut or line[:chars_max]
