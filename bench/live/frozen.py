"""`carpool bench live frozen`: a frozen index against a live one with an empty log, in turn."""

from __future__ import annotations

from itertools import chain
from statistics import fmean

import psutil

from bench.core.accounting import answer_accounting
from bench.core.run import ServicesRun
from bench.core.spread import spread
from bench.core.stack import SERVICES
from bench.live.corpus import live_set
from bench.live.load import WITH_INDEXER, LiveLoad, live_session, over_in
from bench.live.options import FrozenOptions
from schemas.topics import ANSWERS, BASES, GROUPS, RETRIEVALS, VECTORS

SIDES = {"frozen": (SERVICES, "0"), "live": (WITH_INDEXER, str(256 << 20))}
TURNS = ("frozen", "live", "live", "frozen")
WRITTEN = [topic.name for topic in (GROUPS, RETRIEVALS, ANSWERS, VECTORS, BASES)]
P50_MAX = 1.05


def run(options: FrozenOptions) -> bool:
    run, are_whole = ServicesRun("live-frozen", options), list[bool]()
    live = live_set(options)
    turns: dict[str, list[tuple[list[float], float, float]]] = {name: [] for name in SIDES}
    for name in TURNS:  # drift of the machine meets both alike
        services, fresh_bytes = SIDES[name]
        settings = {"CARPOOL_SEARCHER_FRESH_BYTES": fresh_bytes}
        with live_session(run, live, settings, services=services, topics=WRITTEN) as session:
            load = LiveLoad(session, live, options)
            warm_up = load.ask(over_in(max(1.0, options.warm_up_s)))
            session.recorder.wait(warm_up.keys())
            asked = load.ask(over_in(options.seconds / 2))
            session.recorder.wait(asked.keys(), settle_s=1.0)
            are_whole.append(answer_accounting(asked, session.answers(asked)).holds)
            written = sum(len(session.recorder.records(topic)) for topic in WRITTEN)
            memory_bytes = psutil.Process(session.stack["searcher"].pid).memory_info().rss
            times_ms = [*session.answered_ms(asked).values()]
            a_question = written / (len(warm_up) + len(asked))
            turns[name].append((times_ms, memory_bytes / 1e6, a_question))
    found = {
        name: {
            "total ms": spread(chain.from_iterable(ms for ms, _, _ in each)),
            "MB of the searcher": fmean(mb for _, mb, _ in each),
            "records a question": fmean(records for _, _, records in each),
        }
        for name, each in turns.items()
    }
    frozen, own = (spread(chain.from_iterable(one[0] for one in turns[name])) for name in SIDES)
    promises = {
        "each question has one answer": all(are_whole),
        f"p50 of the live side at most {P50_MAX} of the frozen one's": (
            own is not None and frozen is not None and own.p50 <= P50_MAX * frozen.p50
        ),
    }
    return run.finish({"sides": found}, promises=promises, results=found, index=live.index.facts)
