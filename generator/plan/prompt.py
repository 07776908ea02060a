"""Fills a prompt template with passages, within a limit of characters. Deterministic.

Passages come before the question, in the order of the hits. So prompts that share their first
passages share a prefix, and with it the server's KV cache.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from carpool.errors import ConfigError
from carpool.sentences import sentence_spans
from carpool.workflow.steps import Value
from generator.plan.control_tokens import as_plain_text
from generator.plan.evidence import PASSAGE_CHARS_MAX, Evidence
from generator.plan.quote import choose_quote
from schemas.errors import RecordError
from schemas.retrieval import Hit

PLACEHOLDERS = {
    "system": frozenset[str](),
    "passage": frozenset({"n", "title", "text"}),
    "nothing_found": frozenset[str](),
}
"""Sections of a template, each with the placeholders that it must use and may use."""
PASSAGES, QUESTION = "passages", "question"
_HEADING = re.compile(r"^\[(\w+)\]$", re.MULTILINE)
_PLACEHOLDER = re.compile(r"\{\{(\w+)\}\}")
PASSAGE_SEPARATOR = "\n\n"
NO_ROWS = "(none)"
VALUE_CHARS_MAX = 4_000
"""Characters of a text in a list."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Template:
    """The parts of a prompt; `nothing_found` replaces the passages when there are none.

    `rows`: how a row of a list is written, by the placeholder of the list: `{{1}}` is its first
    text.
    """

    system: str
    user: str
    passage: str = "[{{n}}] {{title}}: {{text}}"
    nothing_found: str = "(Nothing was found.)"
    rows: Mapping[str, str] = field(default_factory=dict)

    @property
    def placeholders(self) -> frozenset[str]:
        """The names of the values that fill it."""
        return frozenset(_PLACEHOLDER.findall(self.user))


@dataclass(frozen=True, kw_only=True, slots=True)
class FilledPrompt:
    """The messages to send. They show the passages `given`, by their numbers.

    A number is the place in the list that was given, from 1. `left_out`: the other passages.
    `segments` together are `user`: its begin, which is the same in every prompt of the template and
    may be empty; the passages, each alone; the question; and the end. Every cut is after a line
    break and before a character that is no white space, because no tokenizer joins text there.
    """

    system: str
    user: str
    given: Mapping[int, Hit] = field(default_factory=dict)
    left_out: tuple[Hit, ...] = ()
    segments: tuple[str, ...] = ()

    def sha256(self) -> str:
        """Returns the hash of this prompt, for an answer's provenance."""
        return hashlib.sha256(f"{self.system}\0{self.user}".encode("utf-8", "replace")).hexdigest()


def parse_template(name: str, content: str) -> Template:
    """Returns the template with the sections `[system]`, `[user]`, `[passage]`, `[nothing_found]`.

    One without passages needs the first two only. A section named as a placeholder of `[user]` says
    how a row of that list is written. Text before the first section is a comment. Raises
    `ConfigError` that names what is missing or unknown.
    """
    _, *rest = _HEADING.split(content)
    sections = {heading: text.strip() for heading, text in zip(rest[::2], rest[1::2], strict=True)}
    in_user = set(_PLACEHOLDER.findall(sections.get("user", "")))
    needed = ("system", "user", *(("passage", "nothing_found") if PASSAGES in in_user else ()))
    problems = [f"section [{section}] is missing" for section in needed if section not in sections]
    if not in_user and "user" in sections:
        problems.append("[user] uses no placeholder")
    for section, text in sections.items():
        used, fixed = set(_PLACEHOLDER.findall(text)), PLACEHOLDERS.get(section)
        if section == "user":
            continue
        if fixed is None and section not in in_user:
            known = ", ".join(("system", "user", "passage", "nothing_found"))
            problems.append(
                f"section [{section}] is not known: it is none of {known}, and no placeholder"
            )
        elif fixed is None:
            problems += [
                f"[{section}] cannot use {{{{{one}}}}}: a row has {{{{1}}}}, {{{{2}}}} and so on"
                for one in sorted(used)
                if not one.isdecimal()
            ]
        else:
            problems += [f"[{section}] does not use {{{{{one}}}}}" for one in sorted(fixed - used)]
            problems += [f"[{section}] cannot use {{{{{one}}}}}" for one in sorted(used - fixed)]
    if problems:
        raise ConfigError(
            f"the prompt template {name!r} cannot be used: {'; '.join(problems)}. See `cited.txt`."
        )
    rows = {section: text for section, text in sections.items() if section in in_user}
    parts = {section: text for section, text in sections.items() if section not in in_user}
    return Template(**parts, rows=rows)


def fill(
    template: Template,
    values: Mapping[str, Value],
    *,
    passages_max: int | None = None,
    of_a_search_max: int | None = None,
    passage_chars_max: int,
    prompt_chars_max: int,
    searches: Sequence[Sequence[Hit]] = (),
) -> FilledPrompt:
    """Returns the prompt: all texts whole, and the passages that fit, in the order of their list.

    At most `passages_max` of a list are shown, and `of_a_search_max` of those that one of the
    `searches` found; None: all. Where not all fit, the first of each search go before their second
    ones. Passages of no search count as those of one more. Of a long passage the part that fits the
    question is taken (`fitting_part`). Control tokens of models become plain text. Raises
    `RecordError` if the texts alone do not fit, or where a placeholder has no value.
    """
    if missing := template.placeholders - values.keys():
        lacks = ", ".join(sorted(missing))
        raise RecordError("invalid_value", f"the template needs {lacks}, and the step has no value")
    passages = {name: _passages(name, value) for name, value in values.items()}
    names = sorted(template.placeholders)
    lists = {name: found for name in names if (found := passages[name]) is not None}
    texts = {
        name: _text_of(values[name], template.rows.get(name)) for name in names if name not in lists
    }
    question = texts.get(QUESTION, next(iter(texts.values()), ""))
    times = Counter(_PLACEHOLDER.findall(template.user))
    left = _room(template, texts, question, prompt_chars_max)
    shown: dict[str, dict[int, str]] = {name: {} for name in lists}
    for name, number in _best_first(lists, passages_max, of_a_search_max, searches):
        text = _passage(template, number, lists[name][number - 1], question, passage_chars_max)
        left -= times[name] * (len(text) + len(PASSAGE_SEPARATOR))
        if left < 0:
            break
        shown[name][number] = text
    segments = _segments(template, shown, texts)
    given = [{n: lists[name][n - 1] for n in sorted(each)} for name, each in shown.items()]
    ids = {hit.doc_id for each in given for hit in each.values()}
    hits = [hit for found in passages.values() for hit in found or () if hit.doc_id not in ids]
    return FilledPrompt(
        system=template.system,
        user="".join(segments),
        given=next(filter(None, given), {}),
        left_out=tuple({hit.doc_id: hit for hit in hits}.values()),
        segments=segments,
    )


def _room(
    template: Template, texts: Mapping[str, str], question: str, prompt_chars_max: int
) -> int:
    """Returns the characters left for passages by texts, and by words for lists without any."""
    names = _PLACEHOLDER.findall(template.user)
    left = prompt_chars_max - len(template.system) - len(_PLACEHOLDER.sub("", template.user))
    left -= sum(len(texts.get(name, template.nothing_found)) for name in names)
    if left < 0:
        raise RecordError(
            "too_large",
            f"the question is {len(question)} characters; with its template it does not fit into a "
            f"prompt of {prompt_chars_max} characters (prompt_chars_max)",
            field="$.text",
        )
    return left


def _passage(template: Template, number: int, hit: Hit, question: str, chars_max: int) -> str:
    return _put(
        template.passage,
        n=str(number),
        title=one_line(hit.title, chars_max),
        text=fitting_part(question, hit.text, chars_max),
    )


def _best_first(
    lists: Mapping[str, Sequence[Hit]],
    passages_max: int | None,
    of_a_search_max: int | None,
    searches: Sequence[Sequence[Hit]],
) -> list[tuple[str, int]]:
    """Returns list and number of each passage that may be shown, in the order of their claims."""
    search_of: dict[str, int] = {}
    for search, found in enumerate(searches):
        for hit in found:
            search_of.setdefault(hit.doc_id, search)
    claims = list[tuple[int, str, int]]()
    for name, hits in lists.items():
        ranks = Counter[int]()
        own = list[tuple[int, str, int]]()
        for number, hit in enumerate(hits, start=1):
            search = search_of.get(hit.doc_id, len(searches))
            if of_a_search_max is None or ranks[search] < of_a_search_max:
                own.append((ranks[search], name, number))
            ranks[search] += 1
        claims += sorted(own)[:passages_max]
    return [(name, number) for _, name, number in sorted(claims)]


def _passages(name: str, value: Value) -> Sequence[Hit] | None:
    """Returns the passages of a value; None: it is text. An empty list is, but for their name."""
    if isinstance(value, str) or not isinstance(value, Sequence):
        return None
    hits = [one for one in value if isinstance(one, Hit)]
    return hits if hits or (name == PASSAGES and not value) else None


def _text_of(value: Value, row: str | None) -> str:
    """Returns a value as text: a list has a line for each of its rows."""
    if isinstance(value, str) or not isinstance(value, Sequence):
        return as_plain_text(str(value).strip())
    lines = []
    for one in value:
        columns = (one,) if isinstance(one, str) or not isinstance(one, Sequence) else one
        words = [one_line(str(column), VALUE_CHARS_MAX) for column in columns]
        form = row or "- " + ": ".join(f"{{{{{at}}}}}" for at in range(1, len(words) + 1))
        filled = dict.fromkeys(_PLACEHOLDER.findall(form), "")
        lines.append(_put(form, **filled | {str(at): text for at, text in enumerate(words, 1)}))
    return "\n".join(lines) or NO_ROWS


def _segments(
    template: Template, shown: Mapping[str, Mapping[int, str]], texts: Mapping[str, str]
) -> tuple[str, ...]:
    """Returns the filled message of the user, cut; see `FilledPrompt`."""
    user, wished = "", []
    for place, part in enumerate(_PLACEHOLDER.split(template.user)):
        if not place % 2:
            user += part
            continue
        passages = [text for _, text in sorted(shown.get(part, {}).items())]
        bodies = [texts[part]] if part in texts else passages or [template.nothing_found]
        for number, body in enumerate(bodies):
            wished.append(len(user))
            user += body + (PASSAGE_SEPARATOR if number < len(bodies) - 1 else "")
        wished.append(len(user))
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
    quote = choose_quote(question, Evidence({1: ("", line)}, chars_max=third))
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
