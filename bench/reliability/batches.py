"""The run of `carpool bench batches`: a batch whose services and runner are killed again and again.

First the rate, without faults: plain records and batches in turn. Then the batch of `--lines`: half
of its lines differ, the others repeat 5,000 questions by Zipf's law. Its audit reads the ordered
output against the input.
"""

from __future__ import annotations

import random
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from bench.core.load import even
from bench.core.run import ServicesRun
from bench.core.session import Session, open_session
from bench.core.stack import SERVICES, begin_python
from bench.data.made_up import MODEL, made_up_index, made_up_questions
from bench.reliability.chaos.llm_calls import LlmStandIn
from bench.reliability.chaos.supervisor import ProcessSupervisor, SupervisedProcess
from bench.reliability.options import BatchesOptions
from carpool.errors import CarpoolError
from schemas.batch import AnswerLine
from schemas.topics import ANSWERS

REPEATED = 5_000
PLAIN_PER_S = 4_000.0
RATE_MIN = 0.8
IN_FLIGHT = 1_000
SLOTS = 8
COMMIT_INTERVAL_S = 1.0
"""Answers that a generator may lose with its process, besides those in flight, are of this time."""
STEP_S = 0.2
SETTINGS = {"CARPOOL_EMBEDDING_MODEL": MODEL, "CARPOOL_GENERATOR_PARTIALS": "false"}


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """A batch with faults. `memory_mib`: the most of a runner. `again`: calls of the LLM beyond
    one for each answer that it wrote; `allowed`: what its kills may repeat.
    """

    lines: int
    seconds: float
    kills: dict[str, int]
    wrong: dict[str, int]
    statuses: dict[str, int]
    calls: int
    again: int
    allowed: int
    memory_mib: float
    exits: list[str]


def run(options: BatchesOptions) -> bool:
    run = ServicesRun("batches", options)
    index = made_up_index(run.folder)
    shutil.rmtree(run.folder / "files", ignore_errors=True)
    settings = {**SETTINGS, **run.settings}
    with open_session(index.dir, run.folder, settings, brokers=1, topics=(ANSWERS.name,)) as opened:
        files = Files(run.folder / "files", opened.stack.bootstrap)
        rates = measure_rates(opened, files, options)
        run.note(f"rates: {rates}")
    with open_session(index.dir, run.folder, settings, brokers=1, topics=()) as opened:
        files = Files(run.folder / "files", opened.stack.bootstrap)
        found = measure_faults(run, opened, files, options)
    plain, batch = (max(rates[name]) for name in ("plain", "batch"))
    ratio = batch / plain
    asked_for = dict.fromkeys(SERVICES, options.kills) | {"runner": options.runner_kills}
    promises = {
        "each line is in the ordered output once, and answers its own question": not any(
            found.wrong.values()
        ),
        "no more calls are repeated than kills of the generator may repeat": (
            found.again <= found.allowed
        ),
        f"the rate is at least {RATE_MIN} of plain records": ratio >= RATE_MIN,
        "every service and the runner were killed as often as asked for": all(
            found.kills.get(name, 0) >= wanted for name, wanted in asked_for.items()
        ),
    }
    return run.finish(
        {"rates": {"questions a second": rates | {"ratio": ratio}}, "batch": {"found": found}},
        promises=promises,
        results={"rates": rates, "ratio": ratio, "batch": found},
        index=index.facts,
    )


class Files:
    """Folders of batches, and their runs as processes."""

    def __init__(self, folder: Path, bootstrap: str) -> None:
        self._folder = folder
        self._bootstrap = bootstrap

    def write(self, name: str, texts: Sequence[str]) -> Path:
        """Returns a folder that has nothing but the questions."""
        folder = self._folder / name
        folder.mkdir(parents=True)
        lines = (msgspec.json.encode({"text": text}) + b"\n" for text in texts)
        (folder / "q.jsonl").write_bytes(b"".join(lines))
        return folder

    def begin(self, folder: Path) -> subprocess.Popen[bytes]:
        options = ["--out", "a.jsonl", "--ordered", "--take-over", "--in-flight", str(IN_FLIGHT)]
        command = ["-m", "carpool", "batch", "run", "q.jsonl", *options, "-b", self._bootstrap]
        return begin_python(command, folder)


def measure_rates(
    session: Session, files: Files, options: BatchesOptions
) -> dict[str, list[float]]:
    """Returns questions a second of plain records and of batches, in turn. Blocks."""
    found: dict[str, list[float]] = {"plain": [], "batch": []}
    for turn in range(3):  # the first one warms up
        texts = [f"{one.text} {turn}?" for one in made_up_questions(500, are_vectors=False)]
        count = options.rate_lines
        numbered = [f"{texts[n % 500]} {n}" for n in range(count)]
        asked = [
            msgspec.structs.replace(one, text=text)
            for one, text in zip(made_up_questions(count, are_vectors=False), numbered, strict=True)
        ]
        began_s = time.monotonic()
        load = session.send(asked, even(PLAIN_PER_S), priority="batch")
        session.recorder.wait(load.keys())
        plain_s = time.monotonic() - began_s
        folder = files.write(f"rate-{turn}", [f"{text} once more" for text in numbered])
        began_s = time.monotonic()
        if files.begin(folder).wait():
            raise CarpoolError(f"the batch failed: see {folder}/log.txt")
        batch_s = time.monotonic() - began_s
        if turn:
            found["plain"].append(count / plain_s)
            found["batch"].append(count / batch_s)
    return found


class Faults:
    """A batch that runs while its runner and the services are killed."""

    def __init__(self, session: Session, files: Files, options: BatchesOptions) -> None:
        self.rng = random.Random(options.seed)
        self.texts = list(questions(self.rng, options.lines))
        self.kills, self.memory_mib = Counter[str](), 0.0
        stack = session.stack
        members = {name: stack[name] for name in SERVICES}
        self.supervisor = ProcessSupervisor(
            {name: SupervisedProcess(one, one.start, one.is_up) for name, one in members.items()}
        )
        self._files, self._moves_at = files, options.runner_kills // 2 + 1
        self._victims = [*SERVICES * options.kills, *["runner"] * options.runner_kills]
        self.rng.shuffle(self._victims)
        self._every_s = options.seconds / max(1, len(self._victims))
        self.folder = files.write("first", self.texts)

    def run(self, note: Callable[[str], None]) -> float:
        """Returns the seconds until the batch was done. Blocks."""
        began_s, next_s = time.monotonic(), 5.0
        self._runner = self._files.begin(self.folder)
        while self._runner.poll() is None:
            time.sleep(STEP_S)
            now_s = time.monotonic() - began_s
            self.supervisor.step(now_s)
            self.memory_mib = max(self.memory_mib, peak_mib(self._runner.pid))
            if now_s >= next_s and self._victims and self.supervisor.all_up():
                next_s = now_s + self.rng.uniform(0.5, 1.5) * self._every_s
                self._kill(self._victims.pop(), now_s)
                note(f"{now_s:.0f} s: {dict(self.kills)}, {answers_in(self.folder)} answers here")
        return time.monotonic() - began_s

    def _kill(self, victim: str, now_s: float) -> None:
        self.kills[victim] += 1
        if victim != "runner":
            self.supervisor.kill(victim, now_s)
            return
        self._runner.kill()
        self._runner.wait()
        if self.kills[victim] == self._moves_at:
            self.folder = self._files.write("second", self.texts)  # nothing but the input
        self._runner = self._files.begin(self.folder)


def measure_faults(
    run: ServicesRun, session: Session, files: Files, options: BatchesOptions
) -> Batch:
    """Runs the batch to its end, with all kills. Blocks."""
    faults = Faults(session, files, options)
    seconds = faults.run(run.note)
    wrong, statuses = audit(faults.folder, faults.texts)
    calls = LlmStandIn(session.stack["llm"]).calls()["started"]
    used = (line.tokens for line in read(faults.folder / "a.jsonl"))
    written = sum(1 for tokens in used if tokens is not None and tokens.input_tokens)
    at_once = SLOTS + options.lines / seconds * COMMIT_INTERVAL_S
    return Batch(
        lines=options.lines,
        seconds=seconds,
        kills=dict(faults.kills),
        wrong=wrong,
        statuses=statuses,
        calls=calls,
        again=calls - written,
        allowed=round(faults.kills["generator"] * at_once),
        memory_mib=faults.memory_mib,
        exits=faults.supervisor.exits,
    )


def questions(rng: random.Random, count: int) -> Iterator[str]:
    """Yields questions: every second one is of `REPEATED`, the n-th as often as 1 / n."""
    texts = [one.text for one in made_up_questions(500, are_vectors=False)]
    weights = [1 / rank for rank in range(1, REPEATED + 1)]
    often = rng.choices(range(REPEATED), weights, k=count)
    for number in range(count):
        own = number if number % 2 else often[number]
        yield f"{texts[own % 500]}, {'one' if number % 2 else 'many'} {own}?"


def audit(folder: Path, texts: Sequence[str]) -> tuple[dict[str, int], dict[str, int]]:
    """Returns what is wrong with the outputs of a batch, and the statuses of its lines."""
    ordered, appended = list(read(folder / "a.ordered.jsonl")), Counter[int]()
    for line in read(folder / "a.jsonl"):
        appended[line.line] += 1
    wrong = {
        "missing": len(texts) - len(ordered),
        "out of order": sum(line.line != n for n, line in enumerate(ordered, start=1)),
        "twice": sum(count > 1 for count in appended.values()),
        "another question": sum(line.question != texts[line.line - 1] for line in ordered),
        "not answered": sum(line.status != "ok" for line in ordered),
    }
    return wrong, dict(Counter(line.status for line in ordered))


def read(path: Path) -> Iterator[AnswerLine]:
    decoder = msgspec.json.Decoder(AnswerLine)
    with path.open("rb") as file:
        for line in file:
            yield decoder.decode(line)


def answers_in(folder: Path) -> int:
    path = folder / "a.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def peak_mib(pid: int) -> float:
    """Returns the most memory that a process had; 0 for one that has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    found = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")]
    return int(found[0]) / 1024 if found else 0.0
