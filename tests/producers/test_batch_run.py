"""Runs of batches against brokers: what is asked, what is written, and who works on a batch."""

from __future__ import annotations

import json
import os
import random
import shlex
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from msgspec import structs

from carpool.clock import SystemClock
from carpool.kafka.settings import KafkaSettings
from producers.batch.batch_log import batch_record, read_batches
from producers.publish_queries import Publisher
from producers.settings import ClientSettings
from schemas.answer import Usage, unanswered
from schemas.query import Query
from schemas.record import Record, Source
from schemas.topics import ANSWERS, QUERIES_BATCH
from tests.cli.support import Ended, carpool
from tests.producers.responder import Responder, answer_to
from tests.waiting import WAIT_S, wait_until

PRICES = "--price-in 1 --price-out 1 --max-tokens 5"


@pytest.fixture
def responder(embedded_bootstrap: str) -> Iterator[Responder]:
    made = Responder(embedded_bootstrap, QUERIES_BATCH.name, set())
    yield made
    made.close()


@pytest.fixture
def each_broker(bootstrap: str, tmp_path: Path) -> Iterator[Batches]:
    made = Responder(bootstrap, QUERIES_BATCH.name, set())
    yield Batches(tmp_path, made)
    made.close()


class Batches:
    """A folder, from which batches are run."""

    def __init__(self, folder: Path, responder: Responder) -> None:
        self.folder = folder
        self.responder = responder
        self.at = f"--bootstrap {responder.bootstrap}"
        self.processes: list[subprocess.Popen[str]] = []
        folder.mkdir(exist_ok=True)

    def write(self, *texts: str, name: str = "q.txt") -> str:
        self.responder.texts = set(texts)
        (self.folder / name).write_text("".join(f"{text}\n" for text in texts))
        return str(self.folder / name)

    def arguments(self, options: str, name: str) -> str:
        out = "" if "--out" in options else f"--out {self.folder}/a.jsonl"
        return f"batch run {self.folder}/{name} {out} {options} {self.at}"

    def run(self, options: str = "", name: str = "q.txt") -> Ended:
        return carpool(self.arguments(options, name))

    def begin(self, options: str = "", name: str = "q.txt") -> subprocess.Popen[str]:
        """Starts a run as a process."""
        command = [sys.executable, "-m", "carpool", *shlex.split(self.arguments(options, name))]
        pipe = subprocess.PIPE
        self.processes.append(subprocess.Popen(command, stderr=pipe, stdout=pipe, text=True))
        return self.processes[-1]

    def kill_after(self, count: int, options: str) -> None:
        """Kills a run when the output has so many lines."""
        process, path = self.begin(options), self.folder / "a.jsonl"

        def is_there() -> bool:
            return path.exists() and path.read_bytes().count(b"\n") >= count

        wait_until(lambda: is_there() or process.poll() is not None, f"{count} answers")
        process.kill()
        process.communicate()

    def lines(self, name: str = "a.jsonl") -> list[dict[str, Any]]:
        path = self.folder / name
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def last(self) -> dict[int, str]:
        """Returns the status of each line by the last answer of the output."""
        return {line["line"]: line["status"] for line in self.lines()}


@pytest.fixture
def batches(tmp_path: Path, responder: Responder) -> Iterator[Batches]:
    made = Batches(tmp_path, responder)
    yield made
    for process in made.processes:
        with process:
            process.kill()


def questions(count: int) -> list[str]:
    """Returns questions that no other test asks."""
    run = random.getrandbits(64)
    return [f"question {number} of {run:x}?" for number in range(1, count + 1)]


def failing(responder: Responder, is_bad: Callable[[Query], bool], **how: Any) -> None:
    def reply(query: Query, source: Source) -> list[Record]:
        if not is_bad(query):
            return [answer_to(query, source)]
        why: dict[str, Any] = {"status": "failed", "stage": "generator", "message": "x"} | how
        why.setdefault("error_type", "llm_refused")
        return [unanswered(query_id=query.query_id, source=source, **why)]

    responder.reply = reply


def test_each_line_is_answered_once_and_the_same_is_known_in_another_folder(
    each_broker: Batches, tmp_path: Path
) -> None:
    batches, responder = each_broker, each_broker.responder
    texts = questions(300)
    texts[7] = texts[3]  # two equal lines are two answers
    batches.write(*texts)
    ended = batches.run("--json --ordered")
    assert (ended.code, ended.json["ended"], ended.json["ok"]) == (0, "done", 300)
    ordered = batches.lines("a.ordered.jsonl")
    assert [line["answer"] for line in ordered] == texts
    assert sorted(line["line"] for line in batches.lines()) == list(range(1, 301))
    asked = len(responder.seen)
    assert asked == 300
    elsewhere = Batches(tmp_path / "elsewhere", responder)
    elsewhere.write(*texts, name="renamed.txt")
    for _ in range(2):
        assert elsewhere.run("--ordered", name="renamed.txt").code == 0
        assert elsewhere.lines("a.ordered.jsonl") == ordered
        assert len(elsewhere.lines()) == 300
    assert len(responder.seen) == asked, "nothing was asked again"


def test_a_run_that_is_killed_goes_on_and_each_line_is_written_once(
    each_broker: Batches,
) -> None:
    batches, responder = each_broker, each_broker.responder
    texts = questions(4_000)
    batches.write(*texts)
    for part in (1_000, 2_500):
        batches.kill_after(part, "--in-flight 200 --take-over")
        with (batches.folder / "a.jsonl").open("ab") as file:
            file.write(b'{"line": 1, "stat')  # half a line
    ended = batches.run("--ordered --take-over")
    assert ended.code == 0, ended.stderr
    assert Counter(line["line"] for line in batches.lines()) == Counter(range(1, 4_001))
    assert [line["answer"] for line in batches.lines("a.ordered.jsonl")] == texts
    again = len(responder.seen) - len(texts)
    assert again <= 2 * 200, "only what was in flight is asked again"


def test_ctrl_c_says_how_to_go_on(batches: Batches, responder: Responder) -> None:
    responder.reply = lambda query, source: []
    batches.write(*questions(3))
    process = batches.begin()
    wait_until(lambda: len(responder.seen) == 3, "the questions are sent")
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=WAIT_S)
    assert process.returncode == 130
    assert "give the same command again to go on" in said


def test_failed_lines_are_asked_again_and_the_last_answer_counts(
    batches: Batches, responder: Responder, tmp_path: Path
) -> None:
    batches.write(*questions(6))
    failing(responder, lambda query: query.query_id.endswith(("-2", "-5")))
    ended = batches.run("--json")
    assert (ended.code, ended.json["ok"], ended.json["failed"]) == (1, 4, 2)
    name = ended.json["batch_id"][:12]
    shown = carpool(f"batch show {name} --json {batches.at}").json
    assert (shown["state"], shown["counts"]) == ("done", {"ok": 4, "failed": 2})
    assert batches.run("--json").json["ended"] == "done", "failed is an answer, too"
    failing(responder, lambda query: query.query_id.endswith("-5"))
    for _ in range(2):
        assert carpool(f"batch retry {name} --status failed {batches.at}").code == 0
        ended = batches.run("--json")
    assert (ended.code, ended.json["ok"], ended.json["failed"]) == (1, 5, 1)
    assert Counter(line["line"] for line in batches.lines()) == {1: 1, 2: 2, 3: 1, 4: 1, 5: 3, 6: 1}
    assert batches.last() == {1: "ok", 2: "ok", 3: "ok", 4: "ok", 5: "failed", 6: "ok"}
    elsewhere = Batches(tmp_path / "elsewhere", responder)
    elsewhere.write(*(batches.folder / "q.txt").read_text().splitlines())
    seen = len(responder.seen)
    assert elsewhere.run().code == 1
    assert (elsewhere.last(), len(responder.seen)) == (batches.last(), seen)
    wrong = carpool(f"batch retry {name} --status bad {batches.at}")
    assert (wrong.code, "these are asked again:" in wrong.stderr) == (2, True)


def test_a_cancelled_batch_sends_nothing_more_and_is_asked_again_by_the_next_run(
    batches: Batches, responder: Responder
) -> None:
    batches.write(*questions(200))

    def reply(query: Query, source: Source) -> list[Record]:
        if int(query.query_id.rpartition("-")[2]) <= 20:
            return [answer_to(query, source)]
        return []

    responder.reply = reply
    process = batches.begin("--in-flight 10")
    wait_until(lambda: len(batches.lines()) == 20 or process.poll(), "20 answers")
    name = (batches.lines()[0]["id"] or "").partition("-")[0]
    ended = carpool(f"batch cancel {name} {batches.at}")
    assert (ended.code, "180 questions have no answer" in ended.stderr) == (0, True), ended.stderr
    process.communicate(timeout=WAIT_S)
    assert process.returncode == 1
    assert len(responder.seen) == 30, "nothing was sent after it"
    assert carpool(f"batch show {name} --json {batches.at}").json["state"] == "cancelled"
    withdrawn = [query for query in responder.seen if int(query.query_id.rpartition("-")[2]) > 20]
    for query in withdrawn[:3]:  # as the generator answers a cancel
        end: dict[str, Any] = {"status": "cancelled", "error_type": "cancelled", "message": "x"}
        responder.write(  # comes late
            unanswered(query_id=query.query_id, stage="generator", **end), query.query_id
        )
    responder.reply = lambda query, source: [answer_to(query, source)]
    assert batches.run("--in-flight 10").code == 0
    assert batches.last() == dict.fromkeys(range(1, 201), "ok")


def test_a_second_runner_is_refused_and_takes_over_when_told_to(
    batches: Batches, responder: Responder
) -> None:
    texts = questions(300)
    batches.write(*texts)
    release = threading.Event()

    def reply(query: Query, source: Source) -> list[Record]:
        return [answer_to(query, source)] if release.is_set() else []

    responder.reply = reply
    first = batches.begin("--in-flight 100")
    wait_until(lambda: len(responder.seen) == 100 or first.poll(), "100 questions")
    waiting = batches.begin(f"--out {batches.folder}/c.jsonl")
    assert waiting.stderr is not None
    assert "to see whether it lives" in "".join(iter(waiting.stderr.readline, "\n"))
    waiting.send_signal(signal.SIGINT)
    waiting.communicate(timeout=WAIT_S)
    assert first.poll() is None, "who stops waiting takes nothing over"
    refused = batches.run("--out " + str(batches.folder / "b.jsonl"))
    assert refused.code == 2
    assert "another runner works on this batch" in refused.stderr
    release.set()
    second = batches.run("--take-over --json")  # in the same folder, to the same output
    _, said = first.communicate(timeout=WAIT_S)
    assert (first.returncode, "another runner has taken over" in said) == (1, True)
    assert (second.code, second.json["ok"]) == (0, 300)
    assert sorted(line["line"] for line in batches.lines()) == list(range(1, 301))


def test_a_dead_runner_is_waited_for_and_replaced_whatever_the_clocks_say(
    batches: Batches, responder: Responder
) -> None:
    batches.write(*questions(30))
    responder.reply = lambda query, source: []
    process = batches.begin("--in-flight 10")
    wait_until(lambda: len(responder.seen) == 10 or process.poll(), "10 questions")
    process.kill()
    process.communicate()
    kafka = KafkaSettings(bootstrap=responder.bootstrap)
    newest = max(read_batches(kafka, SystemClock()).values(), key=lambda each: each.updated_ms)
    publisher = Publisher(kafka, ClientSettings())
    ahead = structs.replace(newest, updated_ms=newest.updated_ms + 10**12)  # its clock was ahead
    publisher.send(batch_record(ahead, 10**15), lambda *_: None)
    publisher.close(WAIT_S)
    responder.reply = lambda query, source: [answer_to(query, source)]
    env = {**os.environ, "CARPOOL_LOG_LEVEL": "info"}
    command = [sys.executable, "-m", "carpool", *shlex.split(batches.arguments("", "q.txt"))]
    later = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert later.returncode == 0, later.stderr
    assert "to see whether it lives" in later.stderr
    assert batches.last() == dict.fromkeys(range(1, 31), "ok")


@pytest.mark.parametrize(
    "seed", [*range(2), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 20))]
)
def test_the_cost_of_all_answers_is_never_above_the_limit(
    batches: Batches, responder: Responder, seed: int
) -> None:
    rng = random.Random(seed)
    tokens = [(rng.randrange(40), rng.randrange(6)) for _ in range(81)]
    used = [Usage(input_tokens=each, output_tokens=other) for each, other in tokens]
    responder.reply = lambda query, source: [
        answer_to(query, source, usage=used[int(query.query_id.rpartition("-")[2])])
    ]
    batches.write(*questions(80))
    price_in, price_out = rng.uniform(0, 3), rng.uniform(0.1, 3)
    most = (500 * price_in + 5 * price_out) / 1e6
    cap = rng.uniform(2, 12) * most
    options = (
        f"--price-in {price_in} --price-out {price_out} --max-tokens 5 --max-cost {cap} "
        "--set generator.prompt_chars_max=100 --in-flight 7 --take-over --json"
    )
    batches.kill_after(rng.randrange(1, 15), options)
    ended = batches.run(options).json
    cost = (
        sum(
            line["tokens"]["input_tokens"] * price_in + line["tokens"]["output_tokens"] * price_out
            for line in batches.lines()
        )
        / 1e6
    )
    assert ended["cost"] == pytest.approx(cost)
    assert cost <= cap
    assert ended["ended"] == ("done" if ended["open"] == 0 else "cap")
    assert ended["open"] == 0 or cap - cost < 2 * most, "after a kill, for two answers"
    again = batches.run(options).json
    assert (again["cost"], again["open"]) == (ended["cost"], ended["open"]), "known from the log"


@pytest.mark.parametrize("named", ["model", "workflow"])
def test_what_the_services_have_not_costs_one_question(
    named: str, batches: Batches, responder: Responder
) -> None:
    batches.write(*questions(50))
    field = {"model": "generation.model", "workflow": "workflow"}[named]

    def is_bad(query: Query) -> bool:
        return "big" in (query.workflow, query.generation and query.generation.model)

    failing(responder, is_bad, error_type="unsupported", message=f"{field}: there is no 'big'")
    for _ in range(2):  # it may be there the next time
        ended = batches.run(f"--{named} big")
        assert (ended.code, f"{field}: there is no 'big'" in ended.stderr) == (2, True)
    assert len(responder.seen) == 2
    other = f"--out {batches.folder}/b.jsonl"
    assert batches.run(f"--{named} small {other}").code == 0
    refused = batches.run(f"--top-k 2 {other}")
    assert (refused.code, "has answers of another batch" in refused.stderr) == (2, True)


def test_a_run_that_fails_before_it_has_read_the_answers_changes_nothing(batches: Batches) -> None:
    batches.write(*questions(3))
    name = batches.run("--json").json["batch_id"]
    with (batches.folder / "a.jsonl").open("a") as file:
        file.write("{}\n")
    assert batches.run().code == 2
    shown = carpool(f"batch show {name} --json {batches.at}").json
    assert (shown["state"], shown["counts"], shown.get("runner")) == ("done", {"ok": 3}, None)


def test_a_run_asks_again_what_a_command_wants_meanwhile(
    batches: Batches, responder: Responder
) -> None:
    batches.write(*questions(6))
    release, seen = threading.Event(), Counter[str]()

    def reply(query: Query, source: Source) -> list[Record]:
        line = query.query_id.rpartition("-")[2]
        seen[line] += 1
        if line == "2" and seen[line] == 1:
            end: dict[str, Any] = {"status": "failed", "error_type": "llm_refused"}
            return [unanswered(query_id=query.query_id, stage="generator", message="x", **end)]
        if line == "3" and not release.is_set():
            return []
        return [answer_to(query, source)]

    responder.reply = reply
    process = batches.begin()
    wait_until(lambda: len(batches.lines()) == 5 or process.poll() is not None, "five answers")
    name = (batches.lines()[0]["id"] or "").partition("-")[0]
    retried = carpool(f"batch retry {name} --status failed {batches.at}")
    assert (retried.code, "the run in progress asks them" in retried.stderr) == (0, True)
    wait_until(lambda: batches.last().get(2) == "ok" or process.poll() is not None, "the retry")
    assert carpool(f"batch cancel {name} {batches.at}").code == 0
    process.communicate(timeout=WAIT_S)
    release.set()
    assert batches.run().code == 0
    assert batches.last() == dict.fromkeys(range(1, 7), "ok")


def test_an_estimate_asks_a_sample_and_its_answers_count(
    batches: Batches, responder: Responder
) -> None:
    usage = Usage(input_tokens=100, output_tokens=10)
    responder.reply = lambda query, source: [answer_to(query, source, usage=usage)]
    texts = questions(90)
    batches.write(*texts, *texts[:10])
    found = batches.run(f"--estimate --sample 8 --json {PRICES}").json
    assert (found["answered"], found["left"], found["equal_lines"]) == (8, 92, 10)
    assert found["left_cost"] == pytest.approx(92 * 0.9 * 110 / 1e6)
    assert found["left_cost_low"] == pytest.approx(found["left_cost"]) == found["left_cost_high"]
    assert batches.run(f"--estimate --sample 8 --json {PRICES}").json["answered"] == 8
    assert batches.run(PRICES).code == 0
    assert len(responder.seen) == 100


def test_an_evaluation_runs_the_batch_and_goes_on(batches: Batches, responder: Responder) -> None:
    texts = questions(4)
    gold = [{"text": text, "answers": [text if n else "x"]} for n, text in enumerate(texts)]
    batches.write(*texts)
    batches.write(*map(json.dumps, gold), name="g.jsonl")
    responder.texts = set(texts)
    for _ in range(2):
        found = carpool(f"eval {batches.folder}/g.jsonl --json {batches.at}").json
        assert found["figures"]["answer_match"]["share"] == 0.75
    assert len(responder.seen) == 4


@pytest.mark.kafka
def test_lines_that_only_the_output_has_are_done_when_the_log_has_forgotten_them(
    kafka_bootstrap: str, tmp_path: Path
) -> None:
    responder = Responder(kafka_bootstrap, QUERIES_BATCH.name, set())
    try:
        batches = Batches(tmp_path, responder)
        batches.write(*questions(20))
        assert batches.run().code == 0
        admin = AdminClient({"bootstrap.servers": kafka_bootstrap})
        found = admin.list_topics(ANSWERS.name, timeout=WAIT_S).topics[ANSWERS.name].partitions
        ends = [TopicPartition(ANSWERS.name, partition, -1) for partition in found]
        for future in admin.delete_records(ends).values():
            future.result()
        assert batches.run().code == 0
        assert len(responder.seen) == 20
        elsewhere = Batches(tmp_path / "elsewhere", responder)
        elsewhere.write(*(tmp_path / "q.txt").read_text().splitlines())
        assert elsewhere.run().code == 0
        assert len(responder.seen) == 40, "without the output they are asked again"
    finally:
        responder.close()
