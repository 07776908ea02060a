"""Encodes and decodes commit metadata, the text stored with a committed offset. Pure.

Version 1: `1;` and comma-separated runs. `a+n`: n whole records, the first `a` records after the
committed offset. `a:p-q.r`: parts p to q and part r of the record at `a`. Numbers are decimal.
Version 2: `2;INSTANCE;` and the runs, where INSTANCE is the instance id of the member that
committed (ADR 0007).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping

METADATA_BYTES_MAX = 4_095
"""Limit of commit metadata; brokers accept 4096 bytes by default (`offset.metadata.max.bytes`)."""
UNNAMED_BYTES_MAX = METADATA_BYTES_MAX - 65
"""Limit without an instance id: the id of any later owner (64 bytes and a separator) still fits."""

METADATA_VERSION = "1;"
WITH_INSTANCE_ID = re.compile(r"2;([A-Za-z0-9._-]{1,64});")
RUN_MAX = 1_000_000
"""Longest valid run: fewer records are ever in flight, so a longer run is damage."""


def with_instance_id(metadata: str, instance_id: str) -> str:
    """Returns the metadata with this instance id, which replaces any other."""
    return f"2;{instance_id};{_runs_of(metadata) or ''}"


def instance_id_of(metadata: str) -> str | None:
    """Returns the instance id of the member that committed this; None without one."""
    found = WITH_INSTANCE_ID.match(metadata)
    return found[1] if found else None


def _runs_of(metadata: str) -> str | None:
    """Returns the runs; None for metadata that is empty or of another program."""
    if metadata.startswith(METADATA_VERSION):
        return metadata[len(METADATA_VERSION) :]
    found = WITH_INSTANCE_ID.match(metadata)
    return metadata[found.end() :] if found else None


def encode_metadata(low: int, whole: Iterable[int], parts: Mapping[int, Collection[int]]) -> str:
    """Returns the metadata for these completed records and parts; empty when there are none."""
    entries = [(start - low, f"{start - low}+{count}") for start, count in _runs(whole)]
    for offset, done in parts.items():
        runs = ".".join(
            str(first) if count == 1 else f"{first}-{first + count - 1}"
            for first, count in _runs(done)
        )
        entries.append((offset - low, f"{offset - low}:{runs}"))
    return METADATA_VERSION + ",".join(text for _, text in sorted(entries)) if entries else ""


def decode_metadata(low: int, metadata: str) -> tuple[set[int], dict[int, set[int]]]:
    """Returns (offsets of whole records, parts by offset); both empty for unreadable metadata."""
    whole: set[int] = set()
    parts: dict[int, set[int]] = {}
    runs_text = _runs_of(metadata)
    if runs_text is None:
        return whole, parts
    try:
        for entry in filter(None, runs_text.split(",")):
            if "+" in entry:
                start, count = map(int, entry.split("+"))
                whole.update(_run(low + start, low + start + count - 1))
            else:
                start_text, runs = entry.split(":")
                done = parts.setdefault(low + int(start_text), set())
                for run in runs.split("."):
                    first, _, last = run.partition("-")
                    done.update(_run(int(first), int(last or first)))
    except ValueError:
        return set(), {}
    return whole, parts


def _runs(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Returns (first, count) of each run of consecutive numbers, ascending."""
    runs: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if runs and number == sum(runs[-1]):
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((number, 1))
    return runs


def _run(first: int, last: int) -> range:
    """Returns first..last; raises `ValueError` for an impossible run."""
    if not 0 <= last - first < RUN_MAX or first < 0:
        raise ValueError(f"run {first}-{last}")
    return range(first, last + 1)
