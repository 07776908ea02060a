"""`carpool bench backlog`: do services that start behind many open workflows go on at once?

Half of the workflows wait for a search, half for a text. The same is measured with questions: half
of them wait for a search, half for their answer.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import msgspec

from bench.core.kafka import kafka_settings
from bench.core.memory import memory_of
from bench.core.run import ServicesRun
from bench.core.session import Session, open_session
from bench.core.stack import SERVICES
from bench.data.made_up import MODEL, made_up_index, made_up_questions
from bench.services.options import BacklogOptions
from carpool.clock import SystemClock
from carpool.kafka.librdkafka.producer import LibrdkafkaProducer
from carpool.kafka.records import Output
from carpool.workflow.journal import Workflows, search_query, with_results
from carpool.workflow.load import load_workflows
from carpool.workflow.settings import WorkflowSettings
from carpool.workflow.steps import Retrieve
from schemas.codec import encode
from schemas.headers import ORIGIN_HEADER
from schemas.hit import Hit
from schemas.query import Query
from schemas.record import ClusterId, Source
from schemas.retrieval import Retrieval
from schemas.topics import ANSWERS, GROUPS, QUERIES, RETRIES, RETRIEVALS
from schemas.workflow import StepResult

WRITTEN = (GROUPS.name, RETRIEVALS.name, ANSWERS.name)
"""What services write when they go on."""
SETTLE_S = 8.0
HITS = (Hit(doc_id="passage-0", score=0.5, cluster=ClusterId(0), text="word " * 50),)


def run(options: BacklogOptions) -> bool:
    """Measures both kinds; returns whether workflows went on at once. Raises `CarpoolError`."""
    run = ServicesRun("backlog", options)
    index = made_up_index(run.folder)
    environ = {"CARPOOL_EMBEDDING_MODEL": MODEL, **run.settings}
    llm = ("--latency-ms", "100")
    found: dict[str, dict[str, float]] = {}
    for kind in ("questions", "workflows"):
        with open_session(index.dir, run.folder, environ, brokers=1, llm_options=llm) as session:
            producer = LibrdkafkaProducer(
                kafka_settings(environ, bootstrap=session.stack.bootstrap)
            )
            for output in outputs(kind, options.count, index.manifest.index_version):
                while not producer.produce(output, lambda _: None):
                    producer.poll(0.1)
            run.note(f"{options.count:,} {kind}, {producer.close(60.0)} of them not written")
            found[kind] = measure(session, options.seconds)
    each = found["workflows"]
    promise = "the first step goes on within a second after all services are ready"
    is_kept = 0 <= each["first_s"] <= each["ready_s"] + 1.0
    return run.finish({"backlog": found}, promises={promise: is_kept}, results=found)


def measure(session: Session, seconds: float) -> dict[str, float]:
    """Kills all services, and starts them again. Blocks.

    Returns the seconds until all were ready and until the first record was read that one of them
    wrote (-1: none), their records so far, and the memory of each without pages of files.
    """
    services, recorder = session.stack.services(), session.recorder
    for process in services:
        process.kill()
    before, there = -1, 0
    while there > before:  # their sessions end, and what was written is read
        time.sleep(SETTLE_S)
        before, there = there, sum(map(recorder.distinct, WRITTEN))
    started_s, found = time.time(), {"ready_s": -1.0, "first_s": -1.0}
    for process in services:
        process.start()
    while (now_s := time.time() - started_s) < seconds or found["ready_s"] < 0:
        if found["ready_s"] < 0 and all(each.is_up() for each in services):
            found["ready_s"] = now_s
        found["records"] = sum(map(recorder.distinct, WRITTEN)) - there
        if found["first_s"] < 0 < found["records"]:
            found["first_s"] = now_s
        time.sleep(0.02)
    return found | {
        f"{name}_bytes": memory_of(session.stack[name].pid).anonymous_bytes_max for name in SERVICES
    }


def outputs(kind: str, count: int, index_version: str) -> Iterator[Output]:
    """Yields the records of questions, or of workflows that have begun."""
    workflows, now_us = load_workflows(WorkflowSettings()), SystemClock().now_us()
    searched = QUERIES if kind == "questions" else RETRIES
    for number, question in enumerate(made_up_questions(count)):
        query = Query(query_id=f"q-{number}", text=question.text)
        source = Source(topic=QUERIES.name, partition=0, offset=number, timestamp_ms=1)
        if kind == "workflows":
            query = _begun(msgspec.structs.replace(query, workflow="multistep"), workflows, number)
        waiting = Retrieval(
            query=query,
            source=source,
            revision=1,
            is_final=True,
            index_version=index_version,
            embedding_model=MODEL,
            hits=HITS if kind == "questions" else (),
            skipped_clusters=(),
        )
        record, topic = (waiting, RETRIEVALS) if number % 2 else (query, searched)
        value, headers = encode(
            record, event_id=query.query_id, source="carpool/bench", time_us=now_us
        )
        headers += ((ORIGIN_HEADER, f"{source.place}/1".encode()),)
        key = query.query_id.encode()
        yield Output(topic=topic.name, key=key, value=value, headers=headers)


def _begun(query: Query, workflows: Workflows, number: int) -> Query:
    """Returns a workflow with its first text; every second one has searched with it, too."""
    query = workflows.begin(query)
    (text,) = workflows.asked(query).steps
    query = with_results(query, (StepResult(digest=text.digest(), text=f"of {query.text}"),))
    searches = [step for step in workflows.asked(query).steps if isinstance(step, Retrieve)]
    if number % 2 == 0:
        return search_query(query, searches, 1)
    found = StepResult(digest=searches[0].digest(), text=searches[0].text, hits=HITS)
    return with_results(query, (found,))
