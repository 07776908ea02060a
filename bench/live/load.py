"""What the parts with services share: the services, questions and puts, what became of both."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from itertools import count, pairwise, takewhile
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from bench.core.load import US_PER_S, even, record_of
from bench.core.run import ServicesRun
from bench.core.session import SentLoad, Session, open_session
from bench.core.stack import SERVICES
from bench.live.corpus import LiveSet, PutPlace
from bench.live.options import PASSAGES, LiveOptions
from carpool.clock import SystemClock
from carpool.corpus.base_folders import BASES_FOLDER
from carpool.errors import CarpoolError
from producers.match_answers import Place
from schemas.codec import decode_retrieval
from schemas.retrieval import Retrieval
from schemas.topics import ANSWERS, GROUPS, RETRIEVALS

SETTINGS = {"CARPOOL_LLM_ENGINE": "none", "CARPOOL_GENERATOR_REUSE": "false"}
WITH_INDEXER = (*SERVICES, "indexer")
PROBE_EACH_US = 200_000
"""After a put that is acknowledged then, a question is sent that is bound by it."""
REACH_S, REPEATED = 300.0, 20
Until = Callable[[], bool]


@contextmanager
def live_session(
    run: ServicesRun, live: LiveSet, settings: Mapping[str, str], **stack: Any
) -> Iterator[Session]:
    """Yields services with an indexer, on one broker, and without earlier bases and logs."""
    for folder in (run.folder, live.index.dir / BASES_FOLDER):
        shutil.rmtree(folder, ignore_errors=True)
    own, topics = {**SETTINGS, **settings, **run.settings}, (GROUPS, RETRIEVALS, ANSWERS)
    given = {"brokers": 1, "services": WITH_INDEXER, "topics": [one.name for one in topics]}
    with open_session(live.index.dir, run.folder, own, **{**given, **stack}) as session:
        yield session


def over_in(seconds: float) -> Until:
    """Returns what says whether so many seconds have gone by from now on."""
    until_s = time.monotonic() + seconds
    return lambda: time.monotonic() > until_s


class LiveLoad:
    """Questions at a rate, each another one; and puts, some with a question bound by them."""

    def __init__(self, session: Session, live: LiveSet, options: LiveOptions) -> None:
        """`documents` are put again and again: half as many passages as the base has."""
        self._session, self._live, self._options = session, live, options
        self._numbers, self._first = count(), 0
        self._problems, self._next_probe_us = list[object](), 0
        self.documents = max(1, len(live.vectors) // (2 * PASSAGES))
        self.text_bytes, self.puts = 0, list[PutPlace]()
        self.probes = dict[str, PutPlace]()
        """Of each bound question, the put that it is bound by."""

    def ask(self, is_over: Until) -> SentLoad:
        """Asks until `is_over`; returns what was sent. Blocks."""
        questions = (*self._live.questions[self._first :], *REPEATED * self._live.questions)
        times_us = takewhile(lambda _: not is_over(), even(self._options.rate_per_s))
        sent = self._session.send(questions, times_us, **self._model)
        self._first = (self._first + len(sent)) % len(self._live.questions)
        return sent

    def write(self, is_over: Until, share: float = 1.0) -> float:
        """Puts until `is_over`, at a share of the rate; returns documents a second. Blocks."""
        began_s, rate_per_s = time.monotonic(), self._options.vectors_per_s / PASSAGES
        for done, at_us in enumerate(even(share * rate_per_s)):
            while (wait_s := began_s + at_us / US_PER_S - time.monotonic()) > 0 and not is_over():
                time.sleep(min(wait_s, 0.1))
            if is_over():
                return done / (time.monotonic() - began_s)
            self.put()
        raise AssertionError("times have no end")

    def put(self, *, has_vectors: bool = True) -> None:
        """Puts the next revision of a document."""
        revision, number = divmod(next(self._numbers), self.documents)
        record, size = self._live.document(number, revision + 1, has_vectors=has_vectors)

        def placed(place: Place | None, error: object) -> None:
            if place is None:
                self._problems.append(error)
                return
            put = PutPlace(record.query_id, revision + 1, *place, SystemClock().now_us())
            self.puts.append(put)
            if put.acked_us >= self._next_probe_us:
                self._probe(put)

        self.text_bytes += size
        self._session.publisher.send(record, placed)

    def reach(self) -> float:
        """Returns the seconds until all puts are searched. Blocks. Raises `CarpoolError`."""
        if self._session.publisher.flush(30.0) or self._problems:
            raise CarpoolError(f"puts failed: {self._problems[:1]}")
        began_s, is_over = time.monotonic(), over_in(REACH_S)
        last = {put.partition: put for put in sorted(self.puts, key=lambda each: each.offset)}
        while not is_over():
            asked = self._probe(*last.values())
            self._session.recorder.wait({asked})
            del self.probes[asked]
            if self._session.answers({asked: 0})[0].status == "ok":
                return time.monotonic() - began_s
        raise CarpoolError(f"not all puts are searched after {REACH_S:g} s")

    def _probe(self, *puts: PutPlace) -> str:
        now_us = SystemClock().now_us()
        self._next_probe_us = now_us + PROBE_EACH_US
        record = record_of(self._live.questions[0], now_us, after=puts, **self._model)
        self.probes[record.query_id] = puts[0]
        self._session.publisher.send(record, lambda *_: None)
        return record.query_id

    @property
    def _model(self) -> Any:
        return {"embedding_model": self._live.index.manifest.embedding_model}


class Span(NamedTuple):
    """What a service did from one time to another, epoch microseconds."""

    began_us: float
    ended_us: float

    def meets(self, other: Span) -> bool:
        return self.began_us <= other.ended_us and other.began_us <= self.ended_us


def spans(log_file: Path, event: str) -> list[Span]:
    """Returns when a service did what lines of its log say at the end, with the time it took."""
    lines = (line for line in log_file.read_bytes().splitlines() if event.encode() in line)
    told = [msgspec.json.decode(line) for line in lines]
    ends_us = [datetime.fromisoformat(one["timestamp"]).timestamp() * US_PER_S for one in told]
    return [Span(at - one["took_us"], at) for one, at in zip(told, ends_us, strict=True)]


def longest_gap_ms(times_us: Sequence[float], span: Span) -> float:
    """Returns the longest time without an answer that meets a span. `times_us`: of answers."""
    gaps = [Span(*each) for each in pairwise(sorted(times_us))]
    found = (one.ended_us - one.began_us for one in gaps if one.meets(span))
    return max(found, default=0.0) / 1_000


def retrievals(session: Session) -> dict[str, Retrieval]:
    """Returns the retrieval of each question, by id."""
    records = session.recorder.records(RETRIEVALS.name)
    read = (decode_retrieval(one.value, one.headers) for one in records)
    return {one.query.query_id: one for one in read if isinstance(one, Retrieval)}
