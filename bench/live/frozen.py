"""`carpool bench live frozen`: a frozen index against a live one with an empty log, in turn."""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from pathlib import Path

import msgspec

from bench.core.accounting import Accounting, answer_accounting
from bench.core.kafka import kafka_settings
from bench.core.run import ServicesRun
from bench.core.session import SentLoad, Session, open_session
from bench.core.spread import Spread, spread
from bench.core.stack import SERVICES
from bench.live.corpus import live_set
from bench.live.load import SETTINGS, WITH_INDEXER, Asker, memory_mb
from bench.live.options import FrozenOptions
from carpool.clock import SystemClock
from carpool.kafka.topic_reader import TopicReader
from schemas.topics import ANSWERS

SIDES = {"frozen": (SERVICES, "0"), "live": (WITH_INDEXER, str(256 << 20))}
P50_MAX = 1.05


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """`entries`: that brokers have of a question, by topic, with the markers of transactions."""

    total_ms: Spread | None
    accounting: Accounting
    searcher_mb: float
    entries: dict[str, float]


def run(options: FrozenOptions) -> bool:
    run = ServicesRun("live-frozen", options)
    shutil.rmtree(run.folder, ignore_errors=True)
    live, loads = live_set(options), dict[str, SentLoad]()
    sides, before, found = dict[str, Session](), dict[str, dict[str, int]](), dict[str, Side]()
    with ExitStack() as opened:
        first = open_session(Path(), run.folder, run.settings, services=(), topics=(), brokers=1)
        bootstrap = opened.enter_context(first).stack.bootstrap
        for name, (services, fresh_bytes) in SIDES.items():
            own = {"CARPOOL_KAFKA_PREFIX": name, "CARPOOL_SEARCHER_FRESH_BYTES": fresh_bytes}
            sides[name] = opened.enter_context(
                open_session(
                    live.index.dir,
                    run.folder / name,
                    {**SETTINGS, **own, **run.settings},
                    services=services,
                    bootstrap=bootstrap,
                    topics=(ANSWERS.name,),
                )
            )
        askers = {name: Asker(one, live, options.rate_per_s) for name, one in sides.items()}
        for name, session in sides.items():
            session.recorder.wait(askers[name].ask(options.warm_up_s / 2).keys(), settle_s=1.0)
            before[name], loads[name] = entries(session, run, name), {}
        for name in (*SIDES, *reversed(SIDES)):  # drift of the machine meets both alike
            sent = askers[name].ask(options.seconds / 2)
            sides[name].recorder.wait(sent.keys(), settle_s=1.0)
            loads[name] |= sent
        for name, session in sides.items():
            load, after = loads[name], entries(session, run, name)
            found[name] = Side(
                total_ms=spread(session.answered_ms(load).values()),
                accounting=answer_accounting(load, session.answers(load)),
                searcher_mb=memory_mb(session.stack["searcher"]),
                entries={
                    topic: (end - before[name][topic]) / len(load)
                    for topic, end in after.items()
                    if end > before[name][topic]
                },
            )
    p50s = [one.total_ms.p50 if one.total_ms else float("inf") for one in found.values()]
    promises = {
        "each question has one answer": all(one.accounting.holds for one in found.values()),
        f"p50 of the live side at most {P50_MAX} of the frozen one's": p50s[1] <= P50_MAX * p50s[0],
    }
    return run.finish({"sides": found}, promises=promises, results=found, index=live.index.facts)


def entries(session: Session, run: ServicesRun, prefix: str) -> dict[str, int]:
    """Returns the ends of all topics of a side."""
    bootstrap, own = session.stack.bootstrap, {"CARPOOL_KAFKA_PREFIX": prefix, **run.settings}
    kafka = kafka_settings(own, bootstrap=bootstrap)
    with TopicReader(kafka, SystemClock(), name="bench-ends") as reader:
        return {
            topic: sum(reader.bounds(at)[1] for at in reader.partitions(topic))
            for topic in reader.topics()
        }
