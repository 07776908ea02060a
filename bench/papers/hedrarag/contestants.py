"""The contestants of `carpool bench paper hedrarag`: processes that take questions."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TypeAlias

import msgspec

from bench.core.load import LoadPlan, even
from bench.core.session import Session, open_session, require_all_sent
from bench.core.stack import SERVICES, clean_environment
from bench.papers.hedrarag.baselines import READY, Asked, Ended
from bench.services.overhead import bare_hops
from carpool.clock import SystemClock
from carpool.errors import CarpoolError, ConfigError
from carpool.guard import GuardedProcess
from carpool.settings import environment_name
from carpool.testing.llm_text import NAME as STAND_IN_MODEL
from producers.build_query import build_record
from producers.read_questions import Question
from schemas.answer import Answer
from schemas.codec import decode
from schemas.topics import ANSWERS, QUERIES

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
BASELINES = ("blocking", "langgraph")
NAMES = (*BASELINES, "windows-of-one", "carpool")
WAY = ((QUERIES.name, ANSWERS.name),)
WARM_UP_PER_S, WARM_UP_S = 200.0, 45.0
BROKER, HOP = "broker", "bare hop"
"""What brings questions and answers: to Carpool a broker, to a baseline both, if it had them."""
ROOT = Path(__file__).resolve().parents[3]
LANGGRAPH = ("langgraph==1.2.24", "langgraph-checkpoint-sqlite==3.1.2", "openai==3.52.0")
"""What the environment of the baselines has beside the packages of Carpool's services."""


class AnswerSeen(msgspec.Struct, frozen=True):
    """An answer: when it was read, the texts generated for it, its rounds and itself (`steps`)."""

    at_us: int
    texts: int
    error: str = ""
    steps: int = 0


Seen: TypeAlias = dict[str, list[AnswerSeen]]
"""All answers so far by the id of the question, each as often as it came."""
Processes: TypeAlias = Mapping[str, Sequence[int]]
"""Process ids by name."""


def python_of(folder: Path) -> str:
    """Returns the Python of the environment of the baselines.

    Raises `ConfigError`, which says how to make it, if it has not the packages of `LANGGRAPH`.
    """
    python, found = folder.absolute() / "bin" / "python", ""
    if python.exists():
        listed = [str(python), "-m", "pip", "freeze"]
        found = subprocess.run(listed, capture_output=True, text=True, check=False).stdout
    if missing := {*LANGGRAPH} - {*found.split()}:
        raise ConfigError(
            f"{folder} is no environment with {', '.join(sorted(missing))}. Make it: "
            f"requirements/install {folder} requirements/{{services,models}}.txt && "
            f"{folder}/bin/pip install {' '.join(LANGGRAPH)}; or name another one with --langgraph"
        )
    return str(python)


class Baseline:
    """A process of `bench.papers.hedrarag.baselines`; `beside` it, a bare hop has its questions."""

    def __init__(
        self,
        name: str,
        index: Path,
        url: str,
        work: Path,
        *,
        python: str = sys.executable,
        beside: Services | None = None,
    ) -> None:
        self._name, self._beside = name, beside
        self._log, checkpoints = work / f"{name}.log", work / "checkpoints.sqlite"
        for old in work.glob(f"{checkpoints.name}*"):
            old.unlink()
        module = "bench.papers.hedrarag.baselines"
        self._command = [python, "-m", module, str(index), url]
        self._command.append(str(checkpoints) if name == "langgraph" else "")
        self._seen: Seen = {}
        self._start()

    def _start(self) -> None:
        pipe, env = subprocess.PIPE, clean_environment() | {"PYTHONPATH": str(ROOT)}
        with self._log.open("ab") as log:
            self._process = GuardedProcess[bytes](
                self._command, env=env, stdin=pipe, stdout=pipe, stderr=log
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
        if self._beside:
            self._beside.send(asked)

    def seen(self) -> Seen:
        """Returns the answers so far."""
        return dict(self._seen)

    @property
    def processes(self) -> Processes:
        """Its process, and those beside it."""
        own = {self._name: [self._process.pid]}
        return {**own, **self._beside.processes} if self._beside else own

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
    """Kafka, and Carpool's three services, or `hop`: a bare hop that answers with the question."""

    def __init__(self, session: Session, hop: Sequence[int] = ()) -> None:
        self._session, self._hop = session, hop
        self._problems, self._seen = list[str](), Seen()

    @property
    def processes(self) -> Processes:
        """The processes of Kafka, and those that answer."""
        own = {name: [each.pid] for name, each in self._session.stack.processes.items()}
        brokers = {BROKER: [each.pid for each in self._session.brokers]}
        return own | ({HOP: self._hop} if self._hop else {}) | brokers

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

    def kill_and_restart(self) -> None:
        """Kills the services, and starts them again. Blocks."""
        stack = self._session.stack
        for process in stack.services():
            process.kill()
        stack.start()


Contestant: TypeAlias = Baseline | Services


@contextmanager
def open_contestant(
    name: str, *, index: Path, url: str, work: Path, settings: Mapping[str, str], python: str
) -> Iterator[Contestant]:
    """Yields a contestant that is ready; then ends it.

    `settings`: further ones of Carpool. `python`: of the baselines.
    """
    work.mkdir(parents=True, exist_ok=True)
    chosen = OF_CARPOOL | (ONE_AT_A_TIME if name == "windows-of-one" else {})
    given = {environment_name(*setting): value for setting, value in chosen.items()}
    given |= settings
    is_baseline = name in BASELINES
    services, topics = () if is_baseline else SERVICES, (ANSWERS.name,)
    with ExitStack() as opened:
        session = opened.enter_context(
            open_session(
                index, work, given, services=services, brokers=1, topics=topics, llm_url=url
            )
        )
        bootstrap = session.stack.bootstrap
        warm_up(bootstrap, given, work)
        if not is_baseline:
            yield Services(session)
            return
        hop = opened.enter_context(bare_hops(WAY, bootstrap, given, work))
        beside = Services(session, hop)
        baseline = Baseline(name, index, url, work, python=python, beside=beside)
        yield opened.enter_context(closing(baseline))


def warm_up(bootstrap: str, settings: Mapping[str, str], work: Path) -> None:
    """Lets a bare hop copy questions, until Java has compiled. Blocks for `WARM_UP_S`."""
    own = {**settings, "CARPOOL_KAFKA_PREFIX": "warm-up"}
    topics, count = (ANSWERS.name,), round(WARM_UP_PER_S * WARM_UP_S)
    with (
        open_session(Path(), work, own, services=(), bootstrap=bootstrap, topics=topics) as session,
        bare_hops(WAY, bootstrap, own, work),
    ):
        questions = [Question(text=f"Question {number}?") for number in range(count)]
        session.ask(questions, LoadPlan(), even(WARM_UP_PER_S), topics=topics)


def wait_until(is_true: Callable[[], bool], timeout_s: float) -> None:
    """Waits until a function returns True, or the time is over."""
    until_s = time.monotonic() + timeout_s
    while not is_true() and time.monotonic() < until_s:
        time.sleep(POLL_S)
