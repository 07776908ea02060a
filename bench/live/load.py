"""What the parts with services share: the services, a writer of documents, what became of both."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from bench.core.load import US_PER_S, even, record_of
from bench.core.run import ServicesRun
from bench.core.session import SentLoad, Session, open_session
from bench.core.stack import SERVICES, ServiceProcess
from bench.live.corpus import LiveSet, PutPlace, Truth, name_of
from bench.live.options import LoadOptions
from carpool.clock import SystemClock
from carpool.corpus.bases import is_announcement
from carpool.errors import CarpoolError
from producers.build_query import QueryRecord
from producers.errors import PublishError
from producers.match_answers import Place
from schemas.codec import decode, decode_retrieval
from schemas.document import Base
from schemas.retrieval import Retrieval
from schemas.topics import ANSWERS, BASES, RETRIEVALS

SETTINGS = {"CARPOOL_LLM_ENGINE": "none", "CARPOOL_GENERATOR_REUSE": "false"}
WITH_INDEXER = (*SERVICES, "indexer")
PROBE_EACH_US = 200_000
"""After a put that is acknowledged then, a question is sent that is bound by it."""
SAVED, SWAPPED = "a base was saved", "a newer base is searched"
"""Log lines of indexer and searcher."""


@contextmanager
def live_session(
    run: ServicesRun, live: LiveSet, settings: Mapping[str, str], **stack: Any
) -> Iterator[Session]:
    """Yields services on one broker, with an indexer; see `open_session`."""
    own = {**SETTINGS, **settings, **run.settings}
    given: dict[str, Any] = {"brokers": 1, "services": WITH_INDEXER}
    given["topics"] = (RETRIEVALS.name, ANSWERS.name, BASES.name)
    with open_session(live.index.dir, run.folder, own, **{**given, **stack}) as session:
        yield session


def over_in(seconds: float) -> Callable[[], bool]:
    """Returns what says whether so many seconds have gone by from now on."""
    until_s = time.monotonic() + seconds
    return lambda: time.monotonic() > until_s


class Writer:
    """Puts documents at a rate, and asks questions that are bound by some of them."""

    def __init__(self, session: Session, live: LiveSet, options: LoadOptions) -> None:
        """The same documents are put again and again: half as many passages as the base has."""
        self._session, self._live, self._passages = session, live, options.passages
        self._clock, self._numbers = SystemClock(), count()
        self.documents = max(1, len(live.vectors) // (2 * options.passages))
        self._problems: list[str] = []
        self.text_bytes = 0
        """Of all texts and titles."""
        self._next_probe_us = 0
        self.puts: list[PutPlace] = []
        self.probes: dict[str, PutPlace] = {}
        """Of each bound question, the put that it is bound by."""

    def run(self, rate_per_s: float, is_over: Callable[[], bool]) -> float:
        """Puts so many documents a second until `is_over`; returns how many were. Blocks."""
        began_s = time.monotonic()
        for done, at_us in enumerate(even(rate_per_s)):
            while (wait_s := began_s + at_us / US_PER_S - time.monotonic()) > 0 and not is_over():
                time.sleep(min(wait_s, 0.1))
            if is_over():
                self.flush()
                return done / (time.monotonic() - began_s)
            self.put()
        raise AssertionError("times have no end")

    def put(self, *, has_vectors: bool = True, number: int | None = None) -> None:
        """Puts the next revision of a document, or a given one."""
        at = next(self._numbers)
        revision = 1 + at // self.documents
        number = at % self.documents if number is None else number
        record = self._live.document(
            number, revision, self._passages, self._clock.now_us(), has_vectors=has_vectors
        )
        self.text_bytes += self._live.text_bytes(number, revision, self._passages)

        def placed(place: Place | None, error: PublishError | None) -> None:
            if place is None:
                self._problems.append(str(error))
            else:
                put = PutPlace(name_of(number), revision, *place, self._clock.now_us())
                self.puts.append(put)
                self._probe(put)

        self._session.publisher.send(record, placed)

    def flush(self) -> None:
        """Waits until brokers have all. Raises `CarpoolError` where they do not."""
        if self._session.publisher.flush(30.0) or self._problems:
            raise CarpoolError(f"puts failed: {self._problems[:1]}")

    def reach(self, timeout_s: float = 300.0) -> float:
        """Returns the seconds until the last put is searched. Raises `CarpoolError` for never."""
        began_s = time.monotonic()
        while time.monotonic() < began_s + timeout_s:
            self._next_probe_us = 0
            asked = self._probe(self.puts[-1])
            self._session.recorder.wait({asked})
            answers = {each.query_id: each for each in self._session.answers({asked: 0})}
            del self.probes[asked]
            if answers[asked].status == "ok":
                return time.monotonic() - began_s
        raise CarpoolError(f"the last put is not searched after {timeout_s:g} s")

    def _probe(self, put: PutPlace) -> str:
        """Sends a question that is bound by a put, unless one was sent a moment ago."""
        now_us = self._clock.now_us()
        if now_us < self._next_probe_us:
            return ""
        self._next_probe_us = now_us + PROBE_EACH_US
        question = self._live.asked(1, len(self.probes))[0]
        model = self._live.index.manifest.embedding_model
        record: QueryRecord = record_of(question, now_us, after=[put], embedding_model=model)
        self.probes[record.query_id] = put
        self._session.publisher.send(record, lambda *_: None)
        return record.query_id


class Asker:
    """Sends questions at a rate: each another one."""

    def __init__(self, session: Session, live: LiveSet, rate_per_s: float) -> None:
        self._session, self._live, self._rate_per_s = session, live, rate_per_s
        self._first = 0

    def ask(self, seconds: float) -> SentLoad:
        """Returns what was sent within so many seconds. Blocks."""
        wanted = max(1, round(self._rate_per_s * seconds))
        questions = self._live.asked(wanted, self._first)
        self._first += wanted
        model = self._live.index.manifest.embedding_model
        return self._session.send(questions, even(self._rate_per_s), embedding_model=model)

    def ask_until(self, is_over: Callable[[], bool]) -> SentLoad:
        """Asks until `is_over`, a second at a time."""
        sent = SentLoad()
        while not is_over():
            sent |= self.ask(1.0)
        return sent


class Span(NamedTuple):
    """What a service did from one time to another, epoch microseconds."""

    began_us: int
    ended_us: int

    def meets(self, began_us: float, ended_us: float) -> bool:
        """Whether it was going on at any time between two times."""
        return self.began_us <= ended_us and began_us <= self.ended_us


class _LogLine(msgspec.Struct):
    event: str = ""
    timestamp: str = ""
    took_us: int = 0


def spans(log_file: Path, event: str) -> list[Span]:
    """Returns when a service did what a line of its log says at the end, with the time it took."""
    found = []
    for line in log_file.read_bytes().splitlines():
        if event.encode() in line:
            told = msgspec.json.decode(line, type=_LogLine)
            ended_us = round(datetime.fromisoformat(told.timestamp).timestamp() * US_PER_S)
            found.append(Span(ended_us - told.took_us, ended_us))
    return found


def retrievals(session: Session) -> dict[str, Retrieval]:
    """Returns the retrieval of each question, by id."""
    records = session.recorder.records(RETRIEVALS.name)
    read = (decode_retrieval(one.value, one.headers) for one in records)
    return {one.query.query_id: one for one in read if isinstance(one, Retrieval)}


def mixed(found: Mapping[str, Retrieval], session: Session, puts: Sequence[PutPlace]) -> list[str]:
    """Returns the ids of questions whose passages do not fit what they state; see `Truth`."""
    truth, bases = Truth(puts), dict[str, Base]()
    for one in session.recorder.records(BASES.name):
        if is_announcement(one):  # type: ignore[arg-type]
            base = decode(Base, one.value, one.headers)
            bases[base.name] = base
    wrong = []
    for name, each in found.items():
        assert each.corpus is not None, "the searcher has fresh rows"
        base_position = bases[each.corpus.base].position if each.corpus.base in bases else {}
        if truth.is_mixed(each.hits, each.corpus.position, base_position):
            wrong.append(name)
    return wrong


def memory_mb(process: ServiceProcess) -> float:
    """Returns the memory of a process that is resident: MB."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    found = next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS"))
    return int(found) * 1024 / 1e6


def longest_gap_ms(times_us: Sequence[float], span: Span) -> float:
    """Returns the longest time without an answer that meets a span. `times_us`: of answers."""
    times = np.sort(np.asarray(times_us, np.float64))
    gaps = np.diff(times)
    meets = (times[:-1] <= span.ended_us) & (times[1:] >= span.began_us)
    return float(gaps[meets].max(initial=0.0)) / 1_000
