"""Reads documents and passages by their ids, for queries that fetch instead of search."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import msgspec

from carpool.digest import digest_of
from carpool.disk.documents import Passage
from carpool.endings import AskedQuery
from carpool.errors import ConfigError, CorruptionError, ReadError, RetryableError
from carpool.loop.stage import Done, Unit
from schemas.answer import Fetched, FetchedPassage
from schemas.document import DocumentKey
from schemas.group import Group
from searcher.build import OpenSearcher
from searcher.fresh.corpus import LiveCorpus
from searcher.fresh.open import IndexRows
from searcher.fresh.passages import read_passages
from searcher.row_source import RowPassages


def fetch(name: str, rows: IndexRows, passages: RowPassages, live: LiveCorpus | None) -> Fetched:
    """Returns a document, or a passage and its neighbours, by the name that hits have. Blocks.

    Without passages where there is none. Raises `ReadError`, and `ConfigError` for an index without
    a table of documents.
    """
    for key, number in _readings(name):
        found = _document(key, rows, passages, live)
        if not found:
            continue
        numbers = range(len(found))
        if number is not None:
            if number >= len(found):
                continue
            numbers = range(max(0, number - 1), min(len(found), number + 2))
        return Fetched(
            id=key.shown,
            count=len(found),
            metadata=found[0].metadata,
            passages=tuple(
                FetchedPassage(n=at + 1, title=found[at].title, text=found[at].text)
                for at in numbers
            ),
        )
    return Fetched(id=name, count=0)


def fetched(unit: Unit[Group], part: int, opened: OpenSearcher, now_us: int) -> Done:
    """Returns the end of a query that fetches. Blocks."""
    asked, query = AskedQuery.of(unit, part, stage="searcher"), unit.record.queries[part].query
    live = opened.corpus
    corpus = None if live is None else live.snapshot.corpus
    try:
        found = tuple(fetch(name, opened.rows, opened.passages, live) for name in query.fetch)
    except (CorruptionError, RetryableError) as error:
        return asked.failed(now_us, "index_damaged", str(error), retryable=True, is_transient=True)
    except ConfigError as error:
        return asked.ended(asked.answer("failed", "unsupported", str(error)), now_us)
    answer = asked.answer("ok", "processing_failed", "")
    answer = msgspec.structs.replace(answer, error=None, fetched=found, corpus=corpus)
    return replace(asked.ended(answer, now_us), early="")


def _readings(name: str) -> Iterator[tuple[DocumentKey, int | None]]:
    """Yields what a name may mean: a document, or one of its passages, from 0."""
    document, mark, number = name.rpartition("#")
    ways: list[tuple[str, int | None]] = [(name, None)]
    if mark and number.isascii() and number.isdigit() and int(number[:9]) > 0:
        ways.append((document, int(number[:9]) - 1))
    for shown, nth in ways:
        yield DocumentKey("", shown), nth
        owner, slash, own = shown.partition("/")
        if slash and owner and own:
            yield DocumentKey(owner, own), nth


def _document(
    key: DocumentKey, rows: IndexRows, passages: RowPassages, live: LiveCorpus | None
) -> list[Passage]:
    """Returns the passages of a document in their order; none where there is no such document."""
    digest = digest_of(key.encode())
    if live is not None:
        numbers, view = live.rows_of(digest)
    else:
        numbers, view = rows.rows_of(rows.passages_of(digest)), None
    if not len(numbers):
        return []
    ((_, read),) = read_passages(passages, [numbers.tolist()], [view])
    if isinstance(read, ReadError):
        raise read
    return read
