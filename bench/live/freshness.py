"""`carpool bench live freshness` and `swaps`: puts until they are searched, and questions beside.

A put is searched when a question that is bound by it, sent at its acknowledgement, has been: this
has the way of the question to the searcher. At most five such questions are sent a second. What
services did is read from their logs.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from math import inf
from typing import Any

from bench.core.accounting import answer_accounting
from bench.core.cpu import CpuMeter
from bench.core.kafka import kafka_settings
from bench.core.run import ServicesRun
from bench.core.session import SentLoad, Session
from bench.core.spread import spread
from bench.live.corpus import Truth, live_set
from bench.live.load import (
    LiveLoad,
    Span,
    Until,
    live_session,
    longest_gap_ms,
    over_in,
    retrievals,
    spans,
)
from bench.live.options import PASSAGES, FreshnessOptions, SwapsOptions
from carpool.clock import SystemClock
from producers.corpus.save import save_base
from producers.settings import ClientSettings
from schemas.topics import ANSWERS

SAVED, SWAPPED = "a base was saved", "a newer base is searched"
STALE_MS, QUIET_S_MAX = 5_000.0, 120.0
"""What a put counts whose question has waited in vain: it took at least this long."""
PUT_P50_MS, PUT_P99_MS, BETWEEN_MAX, SAVING_MAX, SAVES_MIN = 150.0, 500.0, 1.2, 1.5, 3
PAUSE_MAX_MS = 200.0
QUIET, BETWEEN, SAVING, SWAPPING = "without writes", "between saves", "in a save", "in a swap"
WRITES, SWAP_S_MAX = "with writes", 120.0
LEFT_OUT = "embedding of questions; an LLM; several brokers and searchers; the put until its ack"


def run(options: FreshnessOptions) -> bool:
    name = "swaps" if isinstance(options, SwapsOptions) else "freshness"
    run = ServicesRun(f"live-{name}", options)
    live = live_set(options)
    with live_session(run, live, {}) as session:
        found = measure(run, session, LiveLoad(session, live, options), options)
    promises = promises_of(found, are_swaps=name == "swaps")
    tables, facts = {name: {"found": found}}, live.index.facts
    return run.finish(tables, promises=promises, results=found, index=facts, left_out=LEFT_OUT)


def measure(
    run: ServicesRun, session: Session, load: LiveLoad, options: FreshnessOptions
) -> dict[str, Any]:
    """Measures without writes, then with writes and saves, then texts. Blocks."""
    pids = {name: [one.pid] for name, one in session.stack.processes.items()}
    pids |= {"broker": [one.pid for one in session.brokers], "load and reader": [os.getpid()]}
    loads, saves_done = dict[str, SentLoad](), threading.Event()

    def ask(name: str, is_over: Until) -> dict[str, float]:
        meter = CpuMeter(pids)
        meter.start()
        loads[name] = load.ask(is_over)
        session.recorder.wait(loads[name].keys())
        meter.stop()
        run.note(f"{name}: measured")
        used = {each: meter.work_s[each] + meter.idle_s[each] for each in meter.work_s}
        return {each: used_s / meter.seconds for each, used_s in used.items()}

    with ThreadPoolExecutor(2, "load") as pool:
        slowly = pool.submit(load.write, over_in(options.warm_up_s), 0.2)
        session.recorder.wait(load.ask(over_in(options.warm_up_s)).keys())
        slowly.result()
        load.reach()
        load.probes.clear()
        cores = {QUIET: ask(QUIET, over_in(min(options.seconds, QUIET_S_MAX)))}
        over = over_in(options.seconds)
        saved = pool.submit(save_all, run, session, options, saves_done)
        written = pool.submit(load.write, lambda: over() and saves_done.is_set())
        behind = pool.submit(load.reach)
        cores[WRITES] = ask(WRITES, lambda: over() and saves_done.is_set())
        saved.result()
    found, began_s = of_log(session, load, loads), time.monotonic()
    for _ in range(options.texts):
        load.put(has_vectors=False)
    load.reach()
    return found | {
        "vectors a second": written.result() * PASSAGES,
        "seconds behind": behind.result(),
        "texts a second": options.texts * PASSAGES / (time.monotonic() - began_s),
        "cores": cores,
    }


def save_all(
    run: ServicesRun, session: Session, options: FreshnessOptions, done: threading.Event
) -> None:
    """Saves bases at equal distances, each after the swap of the one before. Blocks."""
    kafka = kafka_settings(run.settings, bootstrap=session.stack.bootstrap)
    searcher, began_s = session.stack["searcher"], time.monotonic()
    try:
        for number in range(options.saves):
            due_s = began_s + (number + 0.5) * options.seconds / options.saves
            time.sleep(max(0.0, due_s - time.monotonic()))
            swaps = len(spans(searcher.log_file, SWAPPED))
            save_base(kafka, ClientSettings(), SystemClock(), run.note)
            is_late = over_in(SWAP_S_MAX)
            while len(spans(searcher.log_file, SWAPPED)) == swaps and not is_late():
                time.sleep(0.2)
            run.note(f"{number + 1} of {options.saves} bases")
    finally:
        done.set()


def of_log(session: Session, load: LiveLoad, loads: Mapping[str, SentLoad]) -> dict[str, Any]:
    """Returns what became of questions and puts, by what services did meanwhile."""
    searched, asked = retrievals(session), {**loads[QUIET], **loads[WRITES]}
    put_ms = [
        (searched[name].completed_us - put.acked_us) / 1_000
        for name, put in load.probes.items()
        if name in searched
    ]
    stale, stack, truth = len(load.probes) - len(put_ms), session.stack, Truth(load.puts)
    saves = spans(stack["indexer"].log_file, SAVED)
    swaps = spans(stack["searcher"].log_file, SWAPPED)
    times: dict[str, list[float]] = {each: [] for each in (QUIET, BETWEEN, SAVING, SWAPPING)}
    for name, took_ms in session.answered_ms(asked).items():
        way = Span(asked[name], asked[name] + 1_000 * took_ms)
        is_saving, is_swapping = (any(map(way.meets, those)) for those in (saves, swaps))
        phase = SWAPPING if is_swapping else SAVING if is_saving else BETWEEN
        times[QUIET if name in loads[QUIET] else phase].append(took_ms)
    questions = {name: spread(each) for name, each in times.items()}
    records = session.recorder.records(ANSWERS.name)
    times_us = [one.received_us for one in records if one.key in asked]
    quiet = [Span(at, at + 1e6) for at in sorted(loads[QUIET].values())[:-20:20]]
    seen = [(each.hits, each.corpus.position) for each in searched.values() if each.corpus]
    return {
        "put to searched": spread(put_ms + [STALE_MS] * stale),
        "stale": stale,
        "questions": questions,
        "p99": {
            name: one.p99 / base.p99
            for name, one in questions.items()
            if one is not None and (base := questions[QUIET]) is not None
        },
        "seconds of saves": spread((ended - began) / 1e6 for began, ended in saves),
        "seconds of swaps": spread((ended - began) / 1e6 for began, ended in swaps),
        "swaps": len(swaps),
        "beside": stack["searcher"].metric("carpool_corpus_base_swaps_total", how="beside"),
        "gaps": spread(longest_gap_ms(times_us, one) for one in swaps),
        "gaps in seconds without writes": spread(longest_gap_ms(times_us, one) for one in quiet),
        "mixed": sum(truth.is_mixed(*each) for each in seen),
        "accounting": answer_accounting(asked, session.answers(asked)),
    }


def promises_of(found: Mapping[str, Any], *, are_swaps: bool) -> dict[str, bool]:
    """Returns each promise of `freshness`, or of `swaps`. A phase that did not occur keeps none."""
    put, p99 = found["put to searched"], found["p99"]
    kept = {
        "each question has one answer": found["accounting"].holds,
        "no answer is of two states": not found["mixed"],
    }
    if are_swaps:
        pause = f"no pause over {PAUSE_MAX_MS:g} ms"
        beside = "every swap had room for two bases"
        gap_ms = found["gaps"].max if found["gaps"] else inf
        own = {pause: gap_ms <= PAUSE_MAX_MS, beside: found["beside"] == found["swaps"]}
        return kept | own
    kept |= {
        f"a put is searched after {PUT_P50_MS:g} ms (p50)": put.p50 <= PUT_P50_MS,
        f"a put is searched after {PUT_P99_MS:g} ms (p99)": put.p99 <= PUT_P99_MS,
        f"at least {SAVES_MIN} bases were swapped": found["swaps"] >= SAVES_MIN,
    }
    for name, most in (BETWEEN, BETWEEN_MAX), (SAVING, SAVING_MAX):
        kept[f"p99 of questions {name} at most {most:g}x"] = p99.get(name, inf) <= most
    return kept
