"""`carpool bench live freshness`: puts until they are searched, and questions beside them.

A put is searchable when a question that is bound by it, sent at its acknowledgement, has been
searched: so its time has the way of this question to the searcher.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from bench.core.accounting import Accounting, answer_accounting
from bench.core.cpu import CpuMeter
from bench.core.run import ServicesRun
from bench.core.session import SentLoad, Session
from bench.core.spread import Spread, spread
from bench.live.corpus import LiveSet, live_set
from bench.live.load import (
    SAVED,
    SWAPPED,
    Asker,
    Span,
    Writer,
    live_session,
    mixed,
    over_in,
    retrievals,
    spans,
)
from bench.live.options import FreshnessOptions
from searcher.settings import SearcherSettings

QUIET_S_MAX = 120.0
STALE_MS = 5_000.0
"""What a put counts whose question has waited in vain: it took at least this long."""
FRESH_ROW_BYTES = 1_900
"""About what a fresh row of these passages takes."""
PUT_P50_MS, PUT_P99_MS, BETWEEN_MAX, SAVING_MAX, SAVES_MIN = 150.0, 500.0, 1.2, 1.5, 3
QUIET, BETWEEN, SAVING, SWAPPING = "without writes", "between saves", "in a save", "in a swap"


class Freshness(msgspec.Struct, frozen=True, kw_only=True):
    """Times in ms: p50 / p99 / max. `put_to_searched`: from the acknowledgement of a put.
    `way`: the same of a question that is not bound. `behind_s`: from the last put until it is
    searched. `cores`: CPU of each process, without and with writes.
    """

    put_to_searched: Spread | None
    stale: int
    way: Spread | None
    questions: dict[str, Spread | None]
    p99_ratios: dict[str, float]
    p50_ratios: dict[str, float]
    documents_per_s: float
    vectors_per_s: float
    behind_s: float
    save_s: list[float]
    swap_s: list[float]
    mixed: int
    accounting: Accounting
    cores: dict[str, dict[str, float]]
    texts_per_s: float


def run(options: FreshnessOptions) -> bool:
    run = ServicesRun("live-freshness", options)
    shutil.rmtree(run.folder, ignore_errors=True)
    run.note("growing and building the base, if it is not there")
    live = live_set(options)
    settings = {"CARPOOL_SEARCHER_FRESH_BYTES": str(fresh_bytes(options))}
    with live_session(run, live, settings) as session:
        found = measure(run, session, live, options)
    return run.finish(
        {"freshness": {"found": found}},
        promises=promises_of(found),
        results=found,
        index=live.index.facts,
        left_out=LEFT_OUT,
        fresh_bytes=fresh_bytes(options),
    )


LEFT_OUT = """Embedding of questions, which have vectors; an LLM; several brokers and searchers;
the time from `put` to its acknowledgement."""


def fresh_bytes(options: FreshnessOptions) -> int:
    """Returns what lets about as many bases be saved as are wanted: one at half of it."""
    most = SearcherSettings().fresh_bytes
    if not options.saves:
        return most
    rows = options.vectors_per_s * options.seconds / (options.saves + 0.5)
    return min(most, round(2 * rows * FRESH_ROW_BYTES))


def measure(
    run: ServicesRun, session: Session, live: LiveSet, options: FreshnessOptions
) -> Freshness:
    """Measures without writes, with given vectors, and with texts. Blocks."""
    asker, writer = Asker(session, live, options.rate_per_s), Writer(session, live, options)
    pids = {name: [one.pid] for name, one in session.stack.processes.items()}
    pids |= {"broker": [one.pid for one in session.brokers], "load and reader": [os.getpid()]}
    cores, loads = dict[str, dict[str, float]](), dict[str, SentLoad]()
    rate_per_s = options.vectors_per_s / options.passages
    with ThreadPoolExecutor(1, "writer") as pool:
        slowly = pool.submit(writer.run, rate_per_s / 5, over_in(options.warm_up_s))
        session.recorder.wait(asker.ask(max(1.0, options.warm_up_s)).keys())
        slowly.result()
    writer.reach()
    writer.probes.clear()

    def ask(name: str, seconds: float) -> None:
        meter = CpuMeter(pids)
        meter.start()
        loads[name] = asker.ask(seconds)
        session.recorder.wait(loads[name].keys())
        meter.stop()
        used = {each: meter.work_s[each] + meter.idle_s[each] for each in meter.work_s}
        cores[name] = {each: used_s / meter.seconds for each, used_s in used.items()}
        run.note(f"{name}: measured")

    ask(QUIET, min(options.seconds, QUIET_S_MAX))
    with ThreadPoolExecutor(1, "writer") as pool:
        written = pool.submit(writer.run, rate_per_s, over_in(options.seconds))
        behind = pool.submit(writer.reach)
        ask("with writes", options.seconds)
        documents_per_s, behind_s = written.result(), behind.result()
    probes = dict(writer.probes)
    saves = spans(session.stack["indexer"].log_file, SAVED)
    swaps = spans(session.stack["searcher"].log_file, SWAPPED)
    texts_per_s = measure_texts(session, writer, options)
    searched = retrievals(session)
    put_ms = [
        (searched[name].completed_us - put.acked_us) / 1_000
        for name, put in probes.items()
        if name in searched
    ]
    asked = {**loads[QUIET], **loads["with writes"]}
    questions = by_phase(session, loads, saves, swaps)
    return Freshness(
        put_to_searched=spread(put_ms + [STALE_MS] * (len(probes) - len(put_ms))),
        stale=len(probes) - len(put_ms),
        way=spread(
            (searched[name].completed_us - due_us) / 1_000
            for name, due_us in loads[QUIET].items()
            if name in searched
        ),
        questions=questions,
        p99_ratios=ratios(questions, "p99"),
        p50_ratios=ratios(questions, "p50"),
        documents_per_s=documents_per_s,
        vectors_per_s=documents_per_s * options.passages,
        behind_s=behind_s,
        save_s=[(one.ended_us - one.began_us) / 1e6 for one in saves],
        swap_s=[(one.ended_us - one.began_us) / 1e6 for one in swaps],
        mixed=len(mixed(searched, session, writer.puts)),
        accounting=answer_accounting(asked, session.answers(asked)),
        cores=cores,
        texts_per_s=texts_per_s,
    )


def measure_texts(session: Session, writer: Writer, options: FreshnessOptions) -> float:
    """Returns how many passages with text only the indexer embeds a second; 0: none. Blocks."""
    for _ in range(options.texts):
        writer.put(has_vectors=False)
    writer.flush()
    indexer = session.stack["indexer"]
    embedded, reached = {"vectors": "embedded"}, list[tuple[float, float]]()
    wanted = options.texts * options.passages
    while not reached or (reached[-1][1] < wanted and time.monotonic() < reached[0][0] + 300):
        done = indexer.metric("carpool_passages_indexed_total", **embedded)
        if done and (not reached or done > reached[-1][1]):
            reached.append((time.monotonic(), done))
        time.sleep(0.05)
    (began_s, first), (ended_s, last) = reached[0], reached[-1]
    return (last - first) / (ended_s - began_s) if last > first else 0.0


def by_phase(
    session: Session, loads: Mapping[str, SentLoad], saves: Sequence[Span], swaps: Sequence[Span]
) -> dict[str, Spread | None]:
    """Returns the times of questions by what was going on while they were on their way."""
    found: dict[str, list[float]] = {each: [] for each in (QUIET, BETWEEN, SAVING, SWAPPING)}
    found[QUIET] += session.answered_ms(loads[QUIET]).values()
    load = loads["with writes"]
    for name, took_ms in session.answered_ms(load).items():
        way = load[name], load[name] + 1_000 * took_ms
        is_swapping = any(one.meets(*way) for one in swaps)
        is_saving = any(one.meets(*way) for one in saves)
        found[SWAPPING if is_swapping else SAVING if is_saving else BETWEEN].append(took_ms)
    return {name: spread(times_ms) for name, times_ms in found.items()}


def ratios(questions: Mapping[str, Spread | None], field: str) -> dict[str, float]:
    """Returns a percentile of each phase over that without writes."""
    base = questions[QUIET]
    return {
        name: getattr(one, field) / getattr(base, field)
        for name, one in questions.items()
        if one is not None and base is not None and name != QUIET
    }


def promises_of(found: Freshness) -> dict[str, bool]:
    """Returns each promise and whether it was kept. A phase that did not occur keeps none."""
    put, never = found.put_to_searched, float("inf")
    kept: dict[str, Any] = {
        f"a put is searched after {PUT_P50_MS:g} ms (p50)": put and put.p50 <= PUT_P50_MS,
        f"a put is searched after {PUT_P99_MS:g} ms (p99)": put and put.p99 <= PUT_P99_MS,
        f"at least {SAVES_MIN} bases were saved": len(found.save_s) >= SAVES_MIN,
        "each question has one answer": found.accounting.holds,
        "no answer has a text of another revision": not found.mixed,
    }
    for name, most in (BETWEEN, BETWEEN_MAX), (SAVING, SAVING_MAX):
        ratio = found.p99_ratios.get(name, never)
        kept[f"p99 of questions {name} at most {most:g}x"] = ratio <= most
    return {name: bool(each) for name, each in kept.items()}
