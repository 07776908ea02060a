"""Encodes and decodes commit metadata, the text stored with a committed offset. Pure.

Version 1: `1;` and comma-separated runs. `a+n`: n whole records, the first `a` records after the
committed offset. `a:p-q.r`: parts p to q and part r of the record at `a`. Numbers are decimal.
Version 2: `2;INSTANCE;` and the runs, where INSTANCE is the instance id of the member that
committed (ADR 0007). Version 3: `3;DEATHS;INSTANCE;` and the runs; INSTANCE may be empty. DEATHS is
`n.m`, or `n.m!` while the record is in hand alone: see `Deaths`. Version 4: `4;TOPIC;` and one of
these, where TOPIC is the id of the topic that the offset belongs to.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

from carpool.errors import DeploymentError

METADATA_BYTES_MAX = 4_095
"""Limit of commit metadata; brokers accept 4096 bytes by default (`offset.metadata.max.bytes`)."""
RUNS_BYTES_MAX = METADATA_BYTES_MAX - 100
"""Limit of the runs: the longest head of any later owner still fits before them."""
PARTS_MAX = 100_000
"""Parts of one record, at most: a larger number is damage."""

METADATA_VERSION = "1;"
INSTANCE_ID = r"[A-Za-z0-9._-]{1,64}"
TOPIC_ID = r"[A-Za-z0-9+/_-]{22}"
HEAD = re.compile(
    rf"(?:4;({TOPIC_ID});)?"
    rf"(?:1|2;({INSTANCE_ID})|3;([1-5])\.([0-9]{{1,4}})(!?);({INSTANCE_ID})?);"
)
NUMBER = r"[0-9]{1,18}"
WHOLE_RECORDS = re.compile(rf"({NUMBER})\+({NUMBER})")
SOME_PARTS = re.compile(rf"({NUMBER}):((?:{NUMBER}(?:-{NUMBER})?\.)*{NUMBER}(?:-{NUMBER})?)")


class Deaths(NamedTuple):
    """How many processes died with the record at the committed offset in hand (ADR 0027).

    `offsets`: so many from there on may have been in hand each time. `is_alone`: the record is in
    hand alone now.
    """

    times: int
    offsets: int
    is_alone: bool = False


class Completed(NamedTuple):
    """What is complete from the committed offset on: whole records, and parts by offset."""

    whole: OffsetRuns
    parts: dict[int, set[int]]


class Head(NamedTuple):
    """The member that has the partition in hand, by instance id (None: no one), and the deaths.

    `topic_id`: None where the brokers have no ids of topics.
    """

    instance_id: str | None
    deaths: Deaths | None
    topic_id: str | None = None


def head_of(metadata: str) -> Head:
    """Returns what stands before the runs. Raises `DeploymentError` for another program's text."""
    return _split(metadata)[0]


def with_head(metadata: str, head: Head) -> str:
    """Returns the metadata with another head. Raises `DeploymentError` as `head_of` does."""
    return _joined(head, _split(metadata)[1])


def runs_bytes(metadata: str) -> int:
    """Returns the length of the runs. Raises `DeploymentError` as `head_of` does."""
    return len(_split(metadata)[1])


def in_topic(metadata: str, topic_id: str | None) -> str | None:
    """Returns the metadata with the id of its topic; None: it is of another topic of that name.

    Text of another program is returned as it is.
    """
    found = HEAD.match(metadata)
    if topic_id is None or (metadata and not found) or (found and found[1] == topic_id):
        return metadata
    return None if found and found[1] else f"4;{topic_id};{metadata or METADATA_VERSION}"


def encode_metadata(low: int, completed: Completed) -> str:
    """Returns the metadata for a committed offset `low`; empty when nothing above is complete."""
    entries = [
        (first - low, f"{first - low}+{last - first + 1}") for first, last in completed.whole
    ]
    entries += [
        (offset - low, f"{offset - low}:{_parts_text(done)}")
        for offset, done in completed.parts.items()
    ]
    return METADATA_VERSION + ",".join(text for _, text in sorted(entries)) if entries else ""


def decode_metadata(low: int, metadata: str) -> Completed:
    """Returns what is complete above the committed offset `low`.

    Raises `DeploymentError` for text that this build cannot read: to read it as empty would repeat
    completed work.
    """
    completed = Completed(OffsetRuns(), {})
    for entry in filter(None, _split(metadata)[1].split(",")):
        if found := WHOLE_RECORDS.fullmatch(entry):
            start, count = int(found[1]), int(found[2])
            if count == 0:
                raise _unreadable(metadata)
            completed.whole.add(low + start, low + start + count - 1)
        elif found := SOME_PARTS.fullmatch(entry):
            done = completed.parts.setdefault(low + int(found[1]), set())
            for run in found[2].split("."):
                first, _, last = run.partition("-")
                if not int(first) <= int(last or first) < PARTS_MAX:
                    raise _unreadable(metadata)
                done.update(range(int(first), int(last or first) + 1))
        else:
            raise _unreadable(metadata)
    return completed


def _split(metadata: str) -> tuple[Head, str]:
    found = HEAD.match(metadata or METADATA_VERSION)
    if found is None:
        raise _unreadable(metadata)
    topic_id, owner, times, offsets, alone, holder = found.groups()
    deaths = Deaths(int(times), int(offsets), bool(alone)) if times else None
    return Head(owner or holder, deaths, topic_id), metadata[found.end() :]


def _joined(head: Head, runs: str) -> str:
    if head.topic_id is not None:
        return in_topic(_joined(head._replace(topic_id=None), runs), head.topic_id) or ""
    if (deaths := head.deaths) is not None:
        alone = "!" if deaths.is_alone else ""
        return f"3;{deaths.times}.{deaths.offsets}{alone};{head.instance_id or ''};{runs}"
    if head.instance_id is not None:
        return f"2;{head.instance_id};{runs}"
    return METADATA_VERSION + runs if runs else ""


def _unreadable(metadata: str) -> DeploymentError:
    return DeploymentError(
        f"the metadata of the committed offset cannot be read: {metadata[:60]!r}. A newer version "
        "of Carpool or another program committed it, and it may list records that are complete. "
        "Start the version that wrote it, or reset the offset of the group (kafka-consumer-groups "
        "--reset-offsets), which repeats what is complete after that offset"
    )


def _parts_text(done: Collection[int]) -> str:
    runs = OffsetRuns((part, part) for part in done)
    return ".".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


class OffsetRuns:
    """Runs of offsets, ascending; two runs never touch. Not thread-safe."""

    def __init__(self, runs: Iterable[tuple[int, int]] = ()) -> None:
        """`runs`: (first, last) of each run, both included, in any order."""
        self._firsts: list[int] = []
        self._lasts: list[int] = []
        for first, last in runs:
            self.add(first, last)

    def add(self, first: int, last: int) -> None:
        """Adds the offsets from `first` to `last`, both included."""
        begin = bisect_left(self._lasts, first - 1)
        end = bisect_right(self._firsts, last + 1)
        if begin < end:  # these runs overlap the new one, or touch it
            first = min(first, self._firsts[begin])
            last = max(last, self._lasts[end - 1])
        self._firsts[begin:end] = [first]
        self._lasts[begin:end] = [last]

    def discard_before(self, offset: int) -> None:
        """Removes all offsets less than `offset`."""
        gone = bisect_left(self._lasts, offset)
        del self._firsts[:gone], self._lasts[:gone]
        if self._firsts:
            self._firsts[0] = max(self._firsts[0], offset)

    def copy(self) -> OffsetRuns:
        """Returns an independent copy."""
        copied = OffsetRuns()
        copied._firsts, copied._lasts = self._firsts.copy(), self._lasts.copy()
        return copied

    def __contains__(self, offset: int) -> bool:
        at = bisect_left(self._lasts, offset)
        return at < len(self._firsts) and self._firsts[at] <= offset

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Yields (first, last) of each run, ascending."""
        return zip(self._firsts, self._lasts, strict=True)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OffsetRuns) and list(self) == list(other)

    def __len__(self) -> int:
        """Returns the number of offsets."""
        return sum(last - first + 1 for first, last in self)

    __hash__ = None  # type: ignore[assignment]  # it changes
