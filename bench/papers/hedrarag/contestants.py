"""The contestants of `carpool bench paper hedrarag`: processes that take questions."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TypeAlias

import msgspec

from bench.core.session import Session, open_session, require_all_sent
from bench.core.stack import clean_environment
from bench.papers.hedrarag.baselines import READY, Asked, Ended
from carpool.clock import SystemClock
from carpool.errors import CarpoolError
from carpool.guard import GuardedProcess
from carpool.settings import environment_name
from carpool.testing.llm_text import NAME as STAND_IN_MODEL
from producers.build_query import build_record
from schemas.answer import Answer
from schemas.codec import decode
from schemas.topics import ANSWERS

READY_S, POLL_S = 180.0, 0.05
OF_CARPOOL = {
    ("kafka", "delivery"): "exactly_once",
    ("llm", "model"): STAND_IN_MODEL,
    ("generator", "concurrency"): "32",
    ("generator", "partials"): "false",
    ("generator", "reuse"): "false",
}
"""Settings: as many requests as the server runs at once; no answer of an earlier load is reused."""
ONE_AT_A_TIME = {("grouper", "window_queries_max"): "1", ("grouper", "horizon_windows"): "0"}
NAMES = ("blocking", "langgraph", "windows-of-one", "carpool")


class AnswerSeen(msgspec.Struct, frozen=True):
    """An answer: when it was read, the texts generated for it, its rounds and itself (`steps`)."""

    at_us: int
    texts: int
    error: str = ""
    steps: int = 0


Seen: TypeAlias = dict[str, list[AnswerSeen]]
"""All answers so far by the id of the question, each as often as it came."""


class Baseline:
    """A process of `bench.papers.hedrarag.baselines`."""

    def __init__(self, name: str, index: Path, url: str, work: Path) -> None:
        self._log, checkpoints = work / f"{name}.log", work / "checkpoints.sqlite"
        for old in work.glob(f"{checkpoints.name}*"):
            old.unlink()
        module = "bench.papers.hedrarag.baselines"
        self._command = [sys.executable, "-m", module, str(index), url]
        self._command.append(str(checkpoints) if name == "langgraph" else "")
        self._seen: Seen = {}
        self._start()

    def _start(self) -> None:
        pipe = subprocess.PIPE
        with self._log.open("ab") as log:
            self._process = GuardedProcess[bytes](
                self._command, env=clean_environment(), stdin=pipe, stdout=pipe, stderr=log
            )
        self._reader = threading.Thread(target=self._read, args=(self._process,), daemon=True)
        self._reader.start()
        wait_until(lambda: READY in self._seen or self._process.poll() is not None, READY_S)
        if self._seen.pop(READY, None) is None:
            raise CarpoolError(f"a baseline does not start; see {self._log}")

    def _read(self, process: subprocess.Popen[bytes]) -> None:
        for line in process.stdout or ():
            one = msgspec.json.decode(line, type=Ended)
            seen = AnswerSeen(SystemClock().now_us(), one.texts)
            self._seen.setdefault(one.id, []).append(seen)

    def send(self, asked: Asked) -> None:
        """Gives it a question."""
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode(asked) + b"\n")
        self._process.stdin.flush()

    def seen(self) -> Seen:
        """Returns the answers so far."""
        return dict(self._seen)

    def pids(self) -> Sequence[int]:
        """Returns its process."""
        return [self._process.pid]

    def kill_and_restart(self) -> None:
        """Kills the process, and starts it again. Blocks."""
        self.close()
        self._start()

    def close(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._reader.join()
        with self._process:  # closes its pipes
            pass


class Services:
    """Carpool's three services, and Kafka."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._problems, self._seen = list[str](), Seen()

    def send(self, asked: Asked) -> None:
        """Publishes a question."""
        now_us = SystemClock().now_us()
        record = build_record(
            asked.question, now_us=now_us, query_id=asked.id, workflow=asked.workflow
        )
        self._session.publisher.send(
            record, lambda _, error: self._problems.append(str(error)) if error else None
        )

    def seen(self) -> Seen:
        """Returns the answers so far. Raises `CarpoolError` if a question was not sent."""
        require_all_sent(self._problems)
        records = self._session.recorder.records(ANSWERS.name)
        for record in records[sum(map(len, self._seen.values())) :]:
            answer = decode(Answer, record.value, record.headers)
            seen = AnswerSeen(
                record.received_us,
                texts=1 + sum(step.kind == "generate" for step in answer.steps),
                error="" if answer.status == "ok" else f"{answer.status}: {answer.error}",
                steps=1 + max((step.n for step in answer.steps), default=1),
            )
            self._seen.setdefault(answer.query_id, []).append(seen)
        return dict(self._seen)

    def pids(self) -> Sequence[int]:
        """Returns the processes of Kafka and of the services."""
        return self._session.pids

    def kill_and_restart(self) -> None:
        """Kills the services, and starts them again. Blocks."""
        stack = self._session.stack
        for process in stack.services():
            process.kill()
        stack.start()


Contestant: TypeAlias = Baseline | Services


@contextmanager
def open_contestant(
    name: str, *, index: Path, url: str, work: Path, settings: Mapping[str, str]
) -> Iterator[Contestant]:
    """Yields a contestant that is ready; then ends it. `settings`: further ones of Carpool."""
    work.mkdir(parents=True, exist_ok=True)
    chosen = OF_CARPOOL | (ONE_AT_A_TIME if name == "windows-of-one" else {})
    given = {environment_name(*setting): value for setting, value in chosen.items()}
    if name in ("blocking", "langgraph"):
        with closing(Baseline(name, index, url, work)) as baseline:
            yield baseline
        return
    given |= settings
    topics = (ANSWERS.name,)
    with open_session(index, work, given, brokers=1, topics=topics, llm_url=url) as session:
        yield Services(session)


def wait_until(is_true: Callable[[], bool], timeout_s: float) -> None:
    """Waits until a function returns True, or the time is over."""
    until_s = time.monotonic() + timeout_s
    while not is_true() and time.monotonic() < until_s:
        time.sleep(POLL_S)
