"""Saves bases: folds the vectors over the current base, and writes what results (ADR 0031).

It runs in the indexer that owns the first partition of `rag.documents.v1`, on a thread of lowest
priority. It counts what a searcher has in memory, and reads the records again when it saves.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import structlog

from carpool.clock import Clock
from carpool.corpus.base_folders import (
    BASES_FOLDER,
    base_to_open,
    bases_dir,
    first_base,
    is_here,
)
from carpool.corpus.fold import Fold
from carpool.corpus.follower import CorpusFollower
from carpool.corpus.passages import passages_of
from carpool.disk.document_keys import DocumentKeys
from carpool.disk.manifest import BaseFacts, read_manifest
from carpool.errors import CarpoolError, RetryableError
from carpool.kafka.librdkafka.producer import LibrdkafkaProducer
from carpool.kafka.records import Output
from carpool.kafka.settings import KafkaSettings
from carpool.kafka.topic_reader import TopicReader
from carpool.telemetry.metrics import Metrics
from indexer.counted import Counted, Cut
from indexer.progress import ProgressReport
from indexer.retrain import retrain
from indexer.save import FreshDocument, save_base
from indexer.settings import IndexerSettings
from schemas.codec import decode, encode
from schemas.document import Base, DocumentVectors, Position
from schemas.topics import BASES, VECTORS

log = structlog.get_logger()

LOOK_S = 0.2
RETRY_S = 5.0
FULL_SHARE = 0.5
"""A base is saved when so much of `searcher.fresh_bytes` is used."""
LOWEST = 19
"""The priority of the thread, for the system."""


class BaseSaver:
    """See the module. `begin` and `end` are for one thread."""

    def __init__(
        self,
        index_dir: Path,
        fresh_bytes: int,
        settings: IndexerSettings,
        kafka: KafkaSettings,
        metrics: Metrics,
        clock: Clock,
    ) -> None:
        """`fresh_bytes`: what searchers have for fresh rows."""
        self._index_dir = index_dir
        self._settings = settings
        self._limit_bytes = FULL_SHARE * fresh_bytes
        self._kafka = kafka
        self._metrics = metrics.indexer
        self._clock = clock
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Saves bases from now on."""
        self._closing = threading.Event()
        self._thread = threading.Thread(
            target=self._run, args=(self._closing,), name="saver", daemon=True
        )
        self._thread.start()

    def end(self) -> None:
        """Saves no more: another indexer may. What is being saved is given up, soon."""
        self._closing.set()

    # ---- the thread

    def _run(self, closing: threading.Event) -> None:
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LOWEST)
        while not closing.is_set():
            try:
                self._follow(closing)
            except _EndedError:
                return
            except (CarpoolError, OSError) as error:  # another saver may have removed the folder
                log.error("no base can be saved", error=str(error))
                closing.wait(RETRY_S)
            except Exception:
                log.exception("no base can be saved: a defect of Carpool")
                closing.wait(12 * RETRY_S)

    def _follow(self, closing: threading.Event) -> None:
        """Follows the vectors after the current base, until there is another one."""
        base = base_to_open(self._index_dir, self._kafka, self._clock)
        folder = self._index_dir if base is None else bases_dir(self._index_dir) / base.folder
        manifest = read_manifest(folder)
        keys = DocumentKeys.open(folder, manifest)
        facts = first_base(manifest) if base is None else base
        fold = Fold(keys, facts.position)
        counted = Counted(fold, facts)
        follower = CorpusFollower(counted, fold, facts, self._kafka, self._clock)
        follower.start()
        try:
            while not self._is_replaced(follower) and not closing.wait(LOOK_S):
                self._metrics.fresh_bytes.set(fold.used_bytes)
                is_due = fold.used_bytes >= self._limit_bytes or follower.wanted is not None
                if follower.not_ready() or not is_due:
                    continue
                counted.ask(follower.requests)
                follower.touch()
                while (cut := counted.taken()) is None and not closing.wait(LOOK_S / 10):
                    pass
                if cut is not None:
                    self._save(folder, facts, base, cut, closing, follower)
                    return
        finally:
            follower.close()

    def _is_replaced(self, follower: CorpusFollower) -> bool:
        """Whether there is a newer base, on this machine."""
        newer = follower.newer_base
        return newer is not None and is_here(self._index_dir, newer)

    def _save(
        self,
        folder: Path,
        facts: Base,
        base: Base | None,
        cut: Cut,
        closing: threading.Event,
        follower: CorpusFollower,
    ) -> None:
        """Saves a cut of the fold over `base`, and announces it.

        Where a newer base is not on this machine, its successor: up to its position both are equal.
        """
        began_us = self._clock.now_us()
        last = follower.newer_base or base
        self._clean(base)
        name = f"{began_us // 1_000_000}-{os.getpid()}"
        out_dir = bases_dir(self._index_dir) / name
        at: dict[str, Any] = {
            "position": cut.position,
            "vectors": cut.vectors,
            "topic": cut.topic,
            "vectors_topic": follower.vectors_topic,
        }
        fresh = self._fresh(facts.vectors, cut, closing)
        progress = _UntilEnd(closing)
        manifest = save_base(
            folder, out_dir, BaseFacts(**at), cut.hidden, fresh, self._clock, progress
        )
        wanted = follower.wanted
        if wanted is not None and wanted.retrain and manifest.row_count:
            merged, name, out_dir = out_dir, f"{name}-new", out_dir.with_name(f"{name}-new")
            manifest = retrain(merged, out_dir, self._settings, self._clock, progress)
            shutil.rmtree(merged)
        assert manifest.base is not None, "it was saved"
        now_us = self._clock.now_us()
        announced = Base(
            name=manifest.base.name,
            index_version=manifest.index_version,
            folder=name,
            predecessor=None if last is None else last.name,
            requests=cut.requests,
            rows=manifest.row_count,
            saved_ms=now_us // 1_000,
            **at,
        )
        self._announce(announced)
        self._metrics.bases_saved.inc()
        took_us = now_us - began_us
        log.info("a base was saved", base=announced.name, rows=announced.rows, took_us=took_us)

    def _fresh(
        self, starts: Position, cut: Cut, closing: threading.Event
    ) -> Iterator[FreshDocument]:
        """Yields the fresh documents of a cut: their records are read again."""
        wanted = {place: digest for digest, place in cut.latest.items()}
        found = 0
        with TopicReader(self._kafka, self._clock, name="saver", config=READS_ALL) as reader:
            for at in reader.partitions(VECTORS.name):
                end = cut.vectors.get(at.partition, 0)
                start = starts.get(at.partition, 0)
                for message in reader.read_range(at, start, end):
                    if closing.is_set():
                        raise _EndedError("the saver ends")
                    place = (message.source.partition, message.source.offset)
                    if (digest := wanted.get(place)) is None:
                        continue
                    record = decode(DocumentVectors, message.value, message.headers)
                    passages = passages_of(message.key or b"", record)
                    vectors = np.frombuffer(record.vectors, "<f2").reshape(len(passages), -1)
                    found += 1
                    yield FreshDocument(digest, tuple(passages), vectors)
        if found < len(wanted):
            raise RetryableError(
                f"{len(wanted) - found} records of {VECTORS.name} were compacted while a base was "
                "saved: it is saved again"
            )

    def _announce(self, base: Base) -> None:
        """Writes the announcement. Raises `CarpoolError` where brokers do not take it."""
        value, headers = encode(
            base, event_id=base.name, source="carpool/indexer", time_us=self._clock.now_us()
        )
        output = Output(
            topic=BASES.name, key=base.name.encode(), value=value, headers=headers, partition=0
        )
        results = list[CarpoolError | None]()
        producer = LibrdkafkaProducer(self._kafka)
        producer.produce(output, results.append)
        left = producer.close(self._kafka.request_timeout_ms / 1_000)
        if left or not results:
            raise RetryableError(f"{BASES.name} does not take the announcement of a base")
        if results[0] is not None:
            raise results[0]

    def _clean(self, base: Base | None) -> None:
        """Removes the folders of bases that nobody uses any more, and of saves that were killed."""
        folder = bases_dir(self._index_dir)
        kept = {self._index_dir.resolve()}
        if base is not None:
            kept |= {(folder / one).resolve() for one in (base.folder, self._folder_before(base))}
        for each in folder.iterdir() if folder.is_dir() else ():
            if each.resolve() not in kept:
                shutil.rmtree(each, ignore_errors=True)

    def _folder_before(self, base: Base) -> str:
        """Returns the folder of the predecessor of a base, which searchers may still have open."""
        for each in bases_dir(self._index_dir).iterdir():
            with suppress(CarpoolError):
                facts = read_manifest(each).base
                if facts is not None and facts.name == base.predecessor:
                    return each.name
        return BASES_FOLDER


READS_ALL = {"auto.offset.reset": "error", "fetch.wait.max.ms": 100}


class _EndedError(CarpoolError):
    """The saver was ended."""


class _UntilEnd(ProgressReport):
    """Gives a save up when the saver ends."""

    def __init__(self, closing: threading.Event) -> None:
        self._closing = closing

    def advance(self, count: int) -> None:
        if self._closing.is_set():
            raise _EndedError("the saver ends")
