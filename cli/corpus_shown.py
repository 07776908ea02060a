"""What `carpool corpus` shows: how far a put is, a document, and the state of the corpus."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from cli.console import facts, output, print_json
from producers.corpus.files import Root
from producers.corpus.plan import ENDS, DocumentChange
from producers.corpus.put import SILENT_S, CorpusPut

LINE_S = 5.0
"""How often a line is written."""
SHOWN_MAX = 20
"""Refusals that are written one by one."""
LISTED_MAX = 1_000
"""Refusals in the JSON of a put."""
SILENT = (
    f"no indexer has answered for {SILENT_S:g} s. What was sent is in rag.documents.v1, and is not "
    "lost: start an indexer (`carpool up` has one), or see `carpool corpus status`. Ctrl-C ends "
    "this command"
)


class PutReport:
    """Tells how far a put is, and what is refused."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._told_s = time.monotonic()
        self._was_silent, self._line = False, ""
        self._refusals: list[dict[str, str]] = []

    def refused(self, change: DocumentChange) -> None:
        """Writes why a document is refused."""
        if len(self._refusals) < LISTED_MAX:
            self._refusals.append({"at": change.at, "id": change.id, "why": change.why})
        if len(self._refusals) <= SHOWN_MAX:
            self._console.print(f"{_one_line(change.at)}: {change.why}", style="yellow")

    def progress(self, put: CorpusPut) -> None:
        """Writes how far the put is, every few seconds."""
        if put.is_silent and not self._was_silent:
            self._console.print(SILENT, style="yellow")
        self._was_silent = put.is_silent
        line = f"{_counts(put)}; {put.ahead:,} wait for the indexer"
        if line != self._line and (now_s := time.monotonic()) - self._told_s > LINE_S:
            self._told_s, self._line = now_s, line
            self._console.print(line)

    def end(self, put: CorpusPut, root: Root, owner: str, *, as_json: bool) -> None:
        """Says what was put, and what was not."""
        if (more := put.counts["refused"] - SHOWN_MAX) > 0:
            self._console.print(f"{more:,} more are refused", style="yellow")
        if put.kept:
            self._console.print(put.kept, style="yellow")
        if root.passed_over:
            kinds = ", ".join(f"{n:,} {kind or 'others'}" for kind, n in root.passed_over.items())
            self._console.print(f"files of other kinds were passed over: {kinds}")
        if as_json:
            counts = {end: put.counts[end] for end in ENDS}
            is_done = {"owner": owner, "ended": "stopped" if put.is_stopped else "done"}
            left = {"not_indexed": put.ahead, "refusals": self._refusals}
            print_json(is_done | counts | left)
            return
        goes_on = "; stopped, and the same command goes on" if put.is_stopped else ""
        self._console.print(f"{owner or 'no owner'}: {_counts(put)}{goes_on}")


def _counts(put: CorpusPut) -> str:
    return ", ".join(f"{put.counts[end]:,} {end}" for end in ENDS)


def print_document(found: Mapping[str, Any]) -> None:
    """Prints what is known of a document: facts, then its passages, or its text."""
    fields = dict(found)
    text, passages = fields.pop("text", ""), fields.pop("passages", ())
    output().print(facts_table(fields | fields.pop("metadata", {})))
    for number, passage in enumerate(passages, start=1):
        title = passage.get("title", found.get("title", ""))
        output().print(Text(f"\n#{number} {title}", style="bold"), soft_wrap=True)
        output().print(passage["text"], soft_wrap=True)
    if not passages and text:
        output().print(f"\n{text}", soft_wrap=True)


def state_table(found: Mapping[str, Any]) -> Table:
    """Returns the state of the corpus, with the last refusals."""
    names = list(found["refusals"])
    refusals = {_one_line(name[:80]): found["refusals"][name] for name in names[-SHOWN_MAX:]}
    if (more := found["refused"] - len(refusals)) > 0:
        refusals["..."] = f"{more:,} more"
    return facts_table({**found, "refusals": refusals})


def _one_line(text: str) -> str:
    return text.replace("\n", "\\n")


def facts_table(found: Mapping[str, Any]) -> Table:
    """Returns names and values; those of a value that has such itself on lines of their own."""
    rows = dict[str, str]()
    for name, value in found.items():
        name = name.replace("_", " ")
        if isinstance(value, dict):
            rows |= {f"{name} {each}": str(inner) for each, inner in value.items()}
        elif value not in (None, "", False):
            rows[name] = f"{value:,}" if type(value) is int else str(value)
    return facts(rows)
