"""`carpool bench live restart`: a searcher whose memory for fresh rows is full begins, and what the
log takes; and how many answers are given again while others write.
"""

from __future__ import annotations

import shutil
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from bench.core.run import ServicesRun
from bench.core.session import Session
from bench.core.stack import ServiceProcess, Stack
from bench.live.corpus import LiveSet, live_set
from bench.live.load import Asker, Writer, live_session, memory_mb, over_in
from bench.live.options import RestartOptions
from carpool.corpus.base_folders import BASES_FOLDER
from schemas.topics import ANSWERS, DOCUMENTS, VECTORS

FULL = 0.9
STEPS = 20
ROW_BYTES = 1_900
"""About what a fresh row of these passages takes."""
NO_SAVES = ("env", f"CARPOOL_SEARCHER_FRESH_BYTES={1 << 40}", sys.executable, "-m", "carpool")


class Restart(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds until ready, and MB resident then: of a searcher that begins again, of a second one
    that joins, and of a frozen one. `bytes_of_text`: what a byte of texts takes, of UTF-8.
    """

    fresh_rows: int
    fresh_mb: float
    ready_s: dict[str, float]
    memory_mb: dict[str, float]
    bytes_of_text: dict[str, float]
    given_again: dict[str, float]


def run(options: RestartOptions) -> bool:
    run = ServicesRun("live-restart", options)
    shutil.rmtree(run.folder, ignore_errors=True)
    live = live_set(options)
    settings = {"CARPOOL_SEARCHER_FRESH_BYTES": str(options.fresh_mb << 20)}
    settings["CARPOOL_KAFKA_LANES"] = "2"  # so another searcher has work
    commands = {"indexer": (*NO_SAVES, "indexer")}
    with live_session(run, live, settings, commands=commands, topics=(ANSWERS.name,)) as session:
        writer = Writer(session, live, options)
        rows, mb = fill(session, writer, options)
        run.note(f"{rows:,} fresh rows")
        took_bytes = of_text(run.folder, live, session, writer, options)
        ready_s, resident_mb = begin(run, session, live, settings)
    reuses = {"CARPOOL_LLM_ENGINE": "openai", "CARPOOL_GENERATOR_REUSE": "true"}
    with live_session(run, live, reuses) as session:
        given_again = shares(session, live, options)
    found = Restart(
        fresh_rows=rows,
        fresh_mb=mb,
        ready_s=ready_s,
        memory_mb=resident_mb,
        bytes_of_text=took_bytes,
        given_again=given_again,
    )
    return run.finish(
        {"restart": {"found": found}}, promises={}, results=found, index=live.index.facts
    )


def fill(session: Session, writer: Writer, options: RestartOptions) -> tuple[int, float]:
    """Puts documents until fresh rows take `FULL`; returns their number and their MB. Blocks."""
    searcher, limit_bytes = session.stack["searcher"], options.fresh_mb << 20
    writer.documents = sys.maxsize
    while (used := searcher.metric("carpool_corpus_fresh_bytes")) < FULL * limit_bytes:
        for _ in range(max(1, limit_bytes // STEPS // ROW_BYTES // options.passages)):
            writer.put()
        writer.flush()
        writer.reach()
    return round(searcher.metric("carpool_corpus_fresh_rows")), used / 1e6


def of_text(
    folder: Path, live: LiveSet, session: Session, writer: Writer, options: RestartOptions
) -> dict[str, float]:
    """Returns what a byte of text takes in the topics and in the index."""
    topics, found = (DOCUMENTS.name, VECTORS.name), dict[str, float]()
    before, text_before = dict.fromkeys(topics, 0), 0
    for kind in ("given vectors", "text only"):
        text_bytes = writer.text_bytes - text_before
        after = {name: bytes_in(folder, f"{name}-*/*.log") for name in topics}
        for name in topics:
            found[f"{name}, {kind}"] = (after[name] - before[name]) / text_bytes
        before, text_before = after, writer.text_bytes
        for _ in range(options.texts if kind == "given vectors" else 0):
            writer.put(has_vectors=False)
        writer.reach()
    texts = (live.passage(row, 0) for row in range(len(live.vectors)))
    text_bytes = sum(len(one.title.encode()) + len(one.text.encode()) for one in texts)
    shutil.rmtree(live.index.dir / BASES_FOLDER, ignore_errors=True)
    found["the index"] = bytes_in(live.index.dir, "*") / text_bytes
    return found


def bytes_in(folder: Path, pattern: str) -> int:
    return sum(each.stat().st_size for each in folder.rglob(pattern) if each.is_file())


def begin(
    run: ServicesRun, session: Session, live: LiveSet, settings: dict[str, str]
) -> tuple[dict[str, float], dict[str, float]]:
    """Returns seconds and MB of searchers that begin. Blocks."""

    def another(name: str, fresh_bytes: str) -> ServiceProcess:
        own = {"CARPOOL_KAFKA_INSTANCE_ID": name, "CARPOOL_SEARCHER_FRESH_BYTES": fresh_bytes}
        return Stack(
            bootstrap=session.stack.bootstrap,
            index_dir=live.index.dir,
            work_dir=run.folder / name,
            services=("searcher",),
            settings={**run.settings, **own},
        )["searcher"]

    first = session.stack["searcher"]
    first.stop()
    others = {"joins": another("joins", settings["CARPOOL_SEARCHER_FRESH_BYTES"])}
    ready_s, resident_mb = dict[str, float](), dict[str, float]()
    for name, process in {
        "begins again": first,
        **others,
        "frozen": another("frozen", "0"),
    }.items():
        began_s = time.monotonic()
        process.start()
        process.wait_ready()
        ready_s[name], resident_mb[name] = time.monotonic() - began_s, memory_mb(process)
        if process is not first:
            process.stop()
    return ready_s, resident_mb


def shares(session: Session, live: LiveSet, options: RestartOptions) -> dict[str, float]:
    """Returns which share of repeated questions got the answer of the first time. Blocks."""
    writer, found = Writer(session, live, options), dict[str, float]()
    seconds = options.questions / options.rate_per_s
    for name in ("the first time", "without writes", "beside writes"):
        rate_per_s = options.vectors_per_s / options.passages if "beside" in name else 0.01
        with ThreadPoolExecutor(1, "writer") as pool:
            written = pool.submit(writer.run, rate_per_s, over_in(seconds))
            load = Asker(session, live, options.rate_per_s).ask(seconds)
            session.recorder.wait(load.keys())
            written.result()
        answers = session.answers(load)
        found[name] = sum(each.replayed for each in answers) / len(answers)
    return found
