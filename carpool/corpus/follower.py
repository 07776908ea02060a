"""Reads `rag.vectors.v1` behind a base, on a thread of its own, and folds it (ADR 0031).

It reads by itself, without a consumer group: whoever folds has all documents. It reads
`rag.bases.v1`, too.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

import structlog

from carpool.clock import Clock
from carpool.corpus.bases import Bases
from carpool.corpus.fold import OLD_MS, Fold, Revision
from carpool.corpus.passages import size_bytes_of
from carpool.digest import digest_of
from carpool.errors import CarpoolError, ConfigError, RecordError, RetryableError
from carpool.kafka.records import Message, TopicPartition
from carpool.kafka.settings import KafkaSettings
from carpool.kafka.topic_ids import TopicIds
from carpool.kafka.topic_reader import TopicReader, is_final
from schemas.codec import decode
from schemas.document import Base, BaseWanted, DocumentVectors
from schemas.record import Source
from schemas.topics import BASES, DOCUMENTS, VECTORS

_log = structlog.get_logger(__name__)

PUBLISH_S = 0.02
"""Shortest time between two snapshots: each copies masks and lists of blocks."""
IDLE_S = 0.2
"""The longest time between two looks at what others ask for."""
RECORDS = 500
"""Records that are folded between two looks at the clock."""
RETRY_S = 1.0
ANEW = (
    "Stop searchers and indexers; delete rag.vectors.v1, rag.bases.v1 and the consumer group of "
    "the indexer; run `carpool topics create`; start with the first index, or an empty one"
)
"""What to do where the logs and a base do not fit any more."""
CONFIG = {
    "auto.offset.reset": "error",  # what the base does not have must be there
    "fetch.wait.max.ms": 100,
}


class Received(NamedTuple):
    """A record of `rag.vectors.v1`; `is_old`: see `Revision`."""

    key: bytes
    record: DocumentVectors
    source: Source
    is_old: bool

    @property
    def revision(self) -> Revision:
        """What it is for the fold."""
        return Revision(
            self.source.partition,
            self.record.offset,
            digest_of(self.key),
            len(self.record.passages),
            size_bytes_of(self.key, self.record),
            is_behind=self.record.is_behind,
            is_old=self.is_old,
        )


class Folded(Protocol):
    """What folds the records. Called by the thread of the follower alone."""

    def add(self, records: Sequence[Received]) -> bool:
        """Folds records; False where there is no room for them now: nothing changed.

        Raises `ConfigError` for one that no indexer of this corpus writes.
        """
        ...

    def publish(self) -> bool:
        """Uses what was folded; False while the state is behind."""
        ...


def fold_all(corpus: Folded, records: Sequence[Received]) -> int:
    """Folds records in their order, and returns for how many of them there is room."""
    done, size = 0, len(records)
    while done < len(records) and size:
        if corpus.add(records[done : done + size]):
            done += size
        else:
            size //= 2
    return min(done, len(records))


class CorpusFollower:
    """See the module. `start` and `close` are for one thread, the rest for any."""

    def __init__(
        self,
        corpus: Folded,
        fold: Fold,
        base: Base,
        kafka: KafkaSettings,
        clock: Clock,
    ) -> None:
        """`fold`: that of `corpus`. `base`: with what it begins.

        A partition is read from its beginning if `base` does not say from where.
        """
        self._corpus = corpus
        self._fold = fold
        self._base = base
        self._topic = base.topic
        self._bases = Bases()
        self._kafka = kafka
        self._clock = clock
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="corpus", daemon=True)
        self._ends: dict[int, int] = {}  # that a partition must reach before searches begin
        self._next: dict[int, int] = {}  # offset of the next record, by partition
        self._waiting: list[Message] = []  # read, and not folded
        self._full_until_s = 0.0  # where there was no room, it is not tried again before
        self._ends_read: dict[int, int] = {}  # ends that come after them, by partition
        self.ends_of_documents: dict[int, int] | None = {}
        self.full = ""
        """What to do where there is no room, in words."""
        self.vectors_topic = ""
        """The id of `rag.vectors.v1`, once it is read; "" from brokers without."""
        self._missing = "the documents that came after the base are being read"
        self._trouble = ""
        self._is_changed = True

    @property
    def wanted(self) -> BaseWanted | None:
        """What somebody asks for, and no base has met; None while bases are still being read."""
        return self._bases.wanted if self._bases.is_whole else None

    @property
    def requests(self) -> int:
        """See `Bases`."""
        return self._bases.requests

    @property
    def newer_base(self) -> Base | None:
        """The base that was announced after this one; None: this is the current one."""
        current = self._bases.current
        if not self._bases.is_whole or current is None or current.name == self._base.name:
            return None
        return None if self._base.index_version > current.index_version else current

    def start(self) -> None:
        """Begins to read."""
        self._thread.start()

    def close(self) -> None:
        """Ends the thread. Blocks for up to a second."""
        self._closing.set()
        self._thread.join(1.0)

    def not_ready(self) -> str:
        """Returns why searches cannot begin, in words; "" when they can."""
        return f"{self._missing}. {self._trouble}".removesuffix(". ") if self._missing else ""

    def notes(self) -> str:
        """Returns why no more documents are found, in words; "" while they are."""
        return "" if self._missing else self._trouble

    def touch(self) -> None:
        """Lets `Folded.publish` be called, also if nothing has changed."""
        self._is_changed = True

    def ask_for_ends(self) -> None:
        """Asks for the ends of `rag.documents.v1`, which `ends_of_documents` then has."""
        self.ends_of_documents = None

    # ---- the thread

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                self._follow()
            except RetryableError as error:
                self._say(str(error))
                self._closing.wait(RETRY_S)
            except (CarpoolError, RecordError) as error:
                self._say(
                    f"no more documents are read, and searches go on at the position that they "
                    f"have: {error}"
                )
                _log.error("the corpus stands still", error=str(error))
                return
            except Exception as error:
                self._say("no more documents are read: a defect of Carpool, please report the log")
                _log.exception("the corpus stands still", error=str(error))
                return

    def _say(self, trouble: str) -> None:
        self._trouble = trouble

    def _follow(self) -> None:
        """Reads until the follower is closed."""
        with TopicReader(
            self._kafka, self._clock, name="corpus", config=CONFIG, outlives_topics=False
        ) as reader:
            self._begin(reader)
            next_s = 0.0
            while not self._closing.is_set():
                self._read(reader)
                if self.ends_of_documents is None:
                    self._ask_for_ends()
                if self._is_changed and time.monotonic() >= next_s:
                    self._publish()
                    next_s = time.monotonic() + PUBLISH_S

    def _begin(self, reader: TopicReader) -> None:
        """Places the reader behind what was folded, and notes the ends that there are now."""
        self.vectors_topic = TopicIds(self._kafka).now([VECTORS.name]).get(VECTORS.name, "")
        if self._base.vectors_topic not in ("", self.vectors_topic):
            raise ConfigError(f"{VECTORS.name} is not the topic that the base was saved of. {ANEW}")
        starts = dict[TopicPartition, int]()
        for at in reader.partitions(VECTORS.name):
            low, high = reader.bounds(at)
            start = self._next.get(at.partition, self._base.vectors.get(at.partition, low))
            if not low <= start <= high:
                raise ConfigError(
                    f"{at.topic}[{at.partition}] has records {low} to {high}, and the base ends at "
                    f"{start}: the topic was made again, or lost records. {ANEW}"
                )
            starts[at] = self._next[at.partition] = start
            self._ends[at.partition] = high
            self._fold.begin(at.partition)
        if lacking := self._base.vectors.keys() - self._next.keys():
            raise ConfigError(f"{VECTORS.name} has no partition {min(lacking)}, which the base has")
        self._waiting.clear()
        self._ends_read.clear()
        self._bases = Bases()
        of_bases = {at: reader.bounds(at)[0] for at in reader.partitions(BASES.name)}
        reader.add(starts | of_bases)
        self._reach(self._next)

    def _read(self, reader: TopicReader) -> None:
        was_full = bool(self._waiting)
        batch = reader.poll(RECORDS, PUBLISH_S if self._is_changed else IDLE_S)
        if batch.passed_over:
            at, offset = next(iter(batch.passed_over.items()))
            raise ConfigError(
                f"a record of {at.topic}[{at.partition}] before {offset} cannot be unpacked. {ANEW}"
            )
        for error in filter(is_final, batch.errors):
            raise reader.unreadable(next(iter(reader.partitions(VECTORS.name))), error)
        for message in batch.messages:
            if message.source.topic == BASES.name:
                self._bases.hear(message)
            else:
                self._waiting.append(message)
        for at, offset in batch.ends.items():
            if at.topic == BASES.name:
                self._bases.is_whole = True
            else:
                self._ends_read[at.partition] = offset
        self._fold_waiting()
        if bool(self._waiting) != was_full:
            self._pause_or_go_on(reader)
        if not self._waiting and self._ends_read:
            for partition, offset in self._ends_read.items():
                self._next[partition] = max(self._next[partition], offset)
                self._fold.reached_end(partition)
            self._reach(self._ends_read)
            self._ends_read.clear()

    def _pause_or_go_on(self, reader: TopicReader) -> None:
        """While there is no room, only announcements of bases are read."""
        places = {TopicPartition(VECTORS.name, each): at for each, at in self._next.items()}
        if self._waiting:
            reader.remove(places)
            self._ends_read.clear()  # they are read again: a later end counts
        else:
            reader.add(places)

    def _fold_waiting(self) -> None:
        """Folds what was read, as far as there is room; again after some time if there is none."""
        if time.monotonic() < self._full_until_s:
            return
        old_ms = self._clock.now_us() // 1_000 - OLD_MS
        records = [self._received(message, old_ms) for message in self._waiting]
        count = fold_all(self._corpus, records)
        for each in records[:count]:
            self._next[each.source.partition] = each.source.offset + 1
        self._waiting = self._waiting[count:]
        if count:
            self._trouble = ""
            self._is_changed = True
        if self._waiting:
            self._say(self.full)
            self._full_until_s = time.monotonic() + RETRY_S
        self._reach(self._next)

    def _received(self, message: Message, old_ms: int) -> Received:
        """Decodes a record. Raises `ConfigError` for one that no indexer of this corpus writes."""
        source = message.source
        try:
            record = decode(DocumentVectors, message.value, message.headers)
            if self._topic and record.topic != self._topic:
                raise RecordError(
                    "invalid_value",
                    f"it is of another topic rag.documents.v1, which was made again. {ANEW}",
                )
        except RecordError as error:
            raise ConfigError(f"{source.place}: {error}") from error
        self._topic = self._topic or record.topic
        return Received(message.key or b"", record, source, source.timestamp_ms < old_ms)

    def _ask_for_ends(self) -> None:
        """An open transaction hides what it is behind, so all records count."""
        config = {"isolation.level": "read_uncommitted"}
        with TopicReader(self._kafka, self._clock, name="corpus-ends", config=config) as reader:
            self.ends_of_documents = {
                at.partition: reader.bounds(at)[1] for at in reader.partitions(DOCUMENTS.name)
            }

    def _reach(self, partitions: Iterable[int]) -> None:
        """Notes the partitions that have reached the end that they had at the start.

        The fold may still be behind: records after that end may have compacted those before it.
        """
        for partition in partitions:
            if self._next[partition] >= self._ends.get(partition, math.inf):
                del self._ends[partition]
        if self._missing and not self._ends and self._corpus.publish():
            self._missing, self._is_changed = "", False
            _log.info("the documents after the base were read", position=str(self._fold.position))

    def _publish(self) -> None:
        if not self._missing and self._corpus.publish():
            self._is_changed = False
