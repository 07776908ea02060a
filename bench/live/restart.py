"""`carpool bench live restart`: a searcher begins with much to fold; what the log takes; and how
many answers are given again while others write.
"""

from __future__ import annotations

import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil

from bench.core.run import ServicesRun
from bench.core.session import Session
from bench.core.stack import ServiceProcess, Stack
from bench.live.corpus import LiveSet, live_set
from bench.live.load import LiveLoad, live_session, over_in
from bench.live.options import PASSAGES, RestartOptions
from schemas.topics import ANSWERS, DOCUMENTS, VECTORS

FULL, STEPS, ROW_BYTES = 0.9, 20, 1_900
"""How full; filled in so many steps, of rows that take about so much."""
FRESH_BYTES = "CARPOOL_SEARCHER_FRESH_BYTES"
NO_SAVES = ("env", f"{FRESH_BYTES}={1 << 40}", sys.executable, "-m", "carpool", "indexer")


def run(options: RestartOptions) -> bool:
    run = ServicesRun("live-restart", options)
    live, found = live_set(options), dict[str, dict[str, float]]()
    # With two lanes another searcher has work.
    settings = {FRESH_BYTES: str(options.fresh_mb << 20), "CARPOOL_KAFKA_LANES": "2"}
    stack: dict[str, Any] = {"commands": {"indexer": NO_SAVES}, "topics": (ANSWERS.name,)}
    with live_session(run, live, settings, **stack) as session:
        load = LiveLoad(session, live, options)
        found["fresh"] = fill(session, load, options)
        run.note(f"filled: {found['fresh']}")
        found["bytes of a byte of text"] = of_text(run.folder, live, load, options)
        found |= begin(run, session, live, settings)
    reuses = {"CARPOOL_LLM_ENGINE": "openai", "CARPOOL_GENERATOR_REUSE": "true"}
    with live_session(run, live, reuses) as session:
        found["share of answers given again"] = shares(session, live, options)
    tables = {"restart": {"found": found}}
    return run.finish(tables, promises={}, results=found, index=live.index.facts)


def fill(session: Session, load: LiveLoad, options: RestartOptions) -> dict[str, float]:
    """Puts other documents until fresh rows take `FULL`; returns what they take. Blocks."""
    searcher, limit_bytes = session.stack["searcher"], options.fresh_mb << 20
    load.documents = sys.maxsize
    while (used := searcher.metric("carpool_corpus_fresh_bytes")) < FULL * limit_bytes:
        for _ in range(max(1, limit_bytes // STEPS // ROW_BYTES // PASSAGES)):
            load.put()
        load.reach()
    return {"MB": used / 1e6, "rows": searcher.metric("carpool_corpus_fresh_rows")}


def of_text(
    folder: Path, live: LiveSet, load: LiveLoad, options: RestartOptions
) -> dict[str, float]:
    """Returns what a byte of text takes in the topics and in the index."""
    found, before = dict[str, float](), {DOCUMENTS.name: 0, VECTORS.name: 0}
    for kind in ("given vectors", "text only"):
        for topic, size_bytes in before.items():
            before[topic] = bytes_in(folder, f"{topic}-*/*.log")
            found[f"{topic}, {kind}"] = (before[topic] - size_bytes) / load.text_bytes
        load.text_bytes = 0
        for _ in range(options.texts if kind == "given vectors" else 0):
            load.put(has_vectors=False)
        load.reach()
    texts = (live.passage(row, 0) for row in range(len(live.vectors)))
    text_bytes = sum(len(f"{one.title}{one.text}".encode()) for one in texts)
    return found | {"the index": bytes_in(live.index.dir, "*") / text_bytes}


def bytes_in(folder: Path, pattern: str) -> int:
    return sum(each.stat().st_size for each in folder.rglob(pattern) if each.is_file())


def begin(
    run: ServicesRun, session: Session, live: LiveSet, settings: dict[str, str]
) -> dict[str, dict[str, float]]:
    """Returns the seconds until searchers are ready, and their resident MB then. Blocks."""

    def another(name: str, **own: str) -> ServiceProcess:
        return Stack(
            bootstrap=session.stack.bootstrap,
            index_dir=live.index.dir,
            work_dir=run.folder / name,
            services=("searcher",),
            settings={**run.settings, **settings, "CARPOOL_KAFKA_INSTANCE_ID": name, **own},
        )["searcher"]

    first, found = session.stack["searcher"], dict[str, dict[str, float]]()
    first.stop()
    frozen = another("frozen", **{FRESH_BYTES: "0"})
    for name, one in ("begins again", first), ("joins", another("joins")), ("frozen", frozen):
        began_s = time.monotonic()
        one.start()
        one.wait_ready()
        resident_mb = psutil.Process(one.pid).memory_info().rss / 1e6
        found[f"a searcher {name}"] = {"s": time.monotonic() - began_s, "MB": resident_mb}
        if one is not first:
            one.stop()
    return found


def shares(session: Session, live: LiveSet, options: RestartOptions) -> dict[str, float]:
    """Returns which share of repeated questions got the answer of the first time. Blocks."""
    found = dict[str, float]()
    for name, share in ("the first time", 1e-3), ("without writes", 1e-3), ("beside writes", 1.0):
        load = LiveLoad(session, live, options)
        with ThreadPoolExecutor(1, "writer") as pool:
            written = pool.submit(load.write, over_in(options.seconds), share)
            asked = load.ask(over_in(options.seconds))
            session.recorder.wait(asked.keys())
            written.result()
        answers = session.answers(asked)
        found[name] = sum(each.replayed for each in answers) / len(answers)
    return found
