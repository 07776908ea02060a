"""Prints dead letters: one in full, many in a table, all of them counted."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
from rich.table import Table
from rich.text import Text

from carpool.dead_letters.letter import DeadLetter
from cli.console import harmless, table

STARS = "********"
SECRET = re.compile(
    r"auth|token|secret|passw|cookie|credential|api[-_.]?key|private[-_.]?key", re.IGNORECASE
)
HEX_WIDTH = 16
TEXT_CHARS_MAX = 8_192
HEX_BYTES_MAX = 1_024
MESSAGE_CHARS_MAX = 200


class ReasonCount(msgspec.Struct, kw_only=True):
    """The letters of one reason, and the newest of them."""

    reason: str
    letters: int = 0
    newest_ms: int = 0
    newest: str = ""
    message: str = ""


class TopicCount(msgspec.Struct, kw_only=True):
    """The letters of one topic. `open`: not replayed or dropped; the other fields count these.

    Times are epoch milliseconds.
    """

    topic: str
    letters: int = 0
    open: int = 0
    replayed: int = 0
    dropped: int = 0
    oldest_ms: int | None = None
    newest_ms: int | None = None
    reasons: list[ReasonCount] = []


def count(topic: str, letters: Iterable[DeadLetter], *, marked: bool) -> TopicCount:
    """Returns the counts of a topic: reasons and ages of open letters; with `marked`, of all."""
    counted, actions = TopicCount(topic=topic, reasons=[]), Counter[str]()
    reasons: dict[str, ReasonCount] = {}
    for letter in letters:
        actions[letter.mark.action if letter.mark else "open"] += 1
        if letter.mark is not None and not marked:
            continue
        written_ms = letter.place.timestamp_ms
        counted.oldest_ms = min(written_ms, counted.oldest_ms or written_ms)
        counted.newest_ms = max(written_ms, counted.newest_ms or written_ms)
        reason = reasons.setdefault(letter.reason, ReasonCount(reason=letter.reason))
        reason.letters += 1
        if written_ms >= reason.newest_ms:
            reason.newest_ms, reason.newest = written_ms, letter.place.place
            reason.message = letter.message
    counted.letters, counted.open = actions.total(), actions["open"]
    counted.replayed, counted.dropped = actions["replayed"], actions["dropped"]
    counted.reasons = sorted(reasons.values(), key=lambda each: (-each.letters, each.reason))
    return counted


def topics_table(topics: Sequence[TopicCount], now_ms: int) -> Table:
    """Returns one row for each topic."""
    names = ("topic", "open", "replayed", "dropped", "oldest open", "newest open")
    made = table(*names, right=("open",), whole=("topic",))
    for topic in topics:
        made.add_row(
            topic.topic,
            Text(f"{topic.open:,}", style="yellow" if topic.open else "green"),
            f"{topic.replayed:,}",
            f"{topic.dropped:,}",
            age(topic.oldest_ms, now_ms),
            age(topic.newest_ms, now_ms),
        )
    return made


def reasons_table(topic: TopicCount, now_ms: int) -> Table:
    """Returns one row for each reason, with its newest letter as an example."""
    names = ("reason", "letters", "newest", "for example", "")
    made = table(*names, right=("letters",), whole=("reason", "for example"))
    for each in topic.reasons:
        newest = age(each.newest_ms, now_ms)
        made.add_row(
            Text(each.reason), f"{each.letters:,}", newest, each.newest, _one_line(each.message)
        )
    return made


def letters_table(letters: Iterable[DeadLetter], now_ms: int) -> Table:
    """Returns one row for each letter."""
    names = ("letter", "age", "reason", "done", "bytes", "why")
    made = table(*names, right=("bytes",), whole=("letter", "reason"))
    for letter in letters:
        made.add_row(
            letter.place.place,
            age(letter.place.timestamp_ms, now_ms),
            Text(letter.reason),
            letter.mark.action if letter.mark else "",
            f"{len(letter.value):,}",
            _one_line(letter.message),
        )
    return made


def _one_line(message: str) -> Text:
    return Text(harmless(message[:MESSAGE_CHARS_MAX]), "dim", overflow="ellipsis", no_wrap=True)


def age(moment_ms: int | None, now_ms: int) -> str:
    """Returns an age in words, such as 40 s, 12 min, 5 h, 3 d; empty for None."""
    if moment_ms is None:
        return ""
    seconds = max(0, now_ms - moment_ms) // 1_000
    for unit_s, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * unit_s:
            return f"{seconds // unit_s} {unit}"
    return f"{seconds} s"


def letter_text(letter: DeadLetter) -> Text:
    """Returns one letter in full: reason, headers (secrets as stars), value."""
    lines = [Text(letter.place.place, style="bold")]
    lines.append(_row("written", _time(letter.place.timestamp_ms)))
    if letter.mark is not None:
        lines.append(_row(letter.mark.action, _time(letter.mark.marked_us // 1_000)))
    lines += [_row(name, text) for name, text in letter.errors.items() if text]
    lines.append(_row("key", _shown(letter.key)))
    lines.append(Text("headers", style="bold"))
    lines += [_row(name, shown_header(name, content)) for name, content in letter.headers]
    size = "null" if letter.is_null else f"{len(letter.value):,} bytes"
    lines.append(Text(f"value, {size}", style="bold"))
    lines.append(Text(value_text(letter.value)))
    return Text("\n").join(lines)


def letter_json(letter: DeadLetter) -> dict[str, Any]:
    """Returns one letter for programs: bytes as base64, UTF-8 also as text, secrets as stars."""
    try:
        text: str | None = letter.value.decode()
    except UnicodeDecodeError:
        text = None
    return {
        "place": letter.place,
        "topic": letter.topic,
        "reason": letter.reason,
        "errors": letter.errors,
        "mark": letter.mark,
        "key": letter.key,
        "headers": [[name, shown_header(name, content)] for name, content in letter.headers],
        "value": letter.value,
        "text": text,
    }


def shown_header(name: str, content: bytes | None) -> str:
    """Returns the value of a header; stars where its name means a secret."""
    return STARS if SECRET.search(name) else _shown(content)


def value_text(value: bytes) -> str:
    """Returns a value as indented JSON, text or hex; a long one is cut, with a note."""
    try:
        text = msgspec.json.format(value, indent=2).decode()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        try:
            text = value.decode()
        except UnicodeDecodeError:
            return hex_dump(value)
    shown = harmless(text[:TEXT_CHARS_MAX])
    rest = len(text) - TEXT_CHARS_MAX
    return shown + (f"\n... {rest:,} characters more; --raw writes all of it" if rest > 0 else "")


def hex_dump(value: bytes) -> str:
    """Returns a hex dump, 16 bytes a line, at most 1 KiB."""
    lines = []
    for at in range(0, min(len(value), HEX_BYTES_MAX), HEX_WIDTH):
        row = value[at : at + HEX_WIDTH]
        ascii_text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        lines.append(f"{at:08x}  {row.hex(' '):<{HEX_WIDTH * 3}} {ascii_text}")
    if len(value) > HEX_BYTES_MAX:
        lines.append(f"... {len(value) - HEX_BYTES_MAX:,} bytes more; --raw writes all of it")
    return "\n".join(lines)


def _shown(content: bytes | None) -> str:
    if content is None:
        return "(null)"
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return f"0x{content[:128].hex()}"
    return harmless(text)


def _row(name: str, text: str) -> Text:
    return Text(f"  {harmless(name)}: ", style="dim") + Text(harmless(text), style="default")


def _time(moment_ms: int) -> str:
    moment = datetime.fromtimestamp(moment_ms / 1_000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
