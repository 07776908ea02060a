"""`carpool bench live swaps`: bases are saved and swapped while questions are answered."""

from __future__ import annotations

import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import msgspec

from bench.core.accounting import Accounting, answer_accounting
from bench.core.kafka import kafka_settings
from bench.core.run import ServicesRun
from bench.core.session import Session
from bench.core.spread import Spread, spread
from bench.live.corpus import LiveSet, live_set
from bench.live.load import (
    SWAPPED,
    Asker,
    Span,
    Writer,
    live_session,
    longest_gap_ms,
    mixed,
    retrievals,
    spans,
)
from bench.live.options import SwapsOptions
from carpool.clock import SystemClock
from carpool.errors import CarpoolError
from producers.corpus.save import save_base
from producers.settings import ClientSettings
from schemas.topics import ANSWERS

PAUSE_MAX_MS = 200.0
SWAP_TIMEOUT_S = 120.0


class Swaps(msgspec.Struct, frozen=True, kw_only=True):
    """`gap_ms`: the longest time without an answer around each swap; `gap_quiet_ms`: the same, of
    times as long before the first one. `beside`: swaps without closing the old base first.
    """

    swaps: int
    beside: int
    swap_s: list[float]
    base_s: Spread | None
    gap_ms: list[float]
    gap_quiet_ms: Spread | None
    questions_ms: Spread | None
    accounting: Accounting
    mixed: int


def run(options: SwapsOptions) -> bool:
    run = ServicesRun("live-swaps", options)
    shutil.rmtree(run.folder, ignore_errors=True)
    live = live_set(options)
    with live_session(run, live, {}) as session:
        found = measure(run, session, live, options)
    promises = {
        "no answer is lost, and none is there twice": found.accounting.holds,
        "no answer is mixed of two states": not found.mixed,
        f"no pause over {PAUSE_MAX_MS:g} ms": max(found.gap_ms, default=0.0) <= PAUSE_MAX_MS,
        "every swap had room for two bases": found.beside == found.swaps == options.swaps,
    }
    return run.finish(
        {"swaps": {"found": found}}, promises=promises, results=found, index=live.index.facts
    )


def measure(run: ServicesRun, session: Session, live: LiveSet, options: SwapsOptions) -> Swaps:
    """Asks and puts all the time; saves one base after the other. Blocks."""
    asker, writer = Asker(session, live, options.rate_per_s), Writer(session, live, options)
    searcher, over = session.stack["searcher"], threading.Event()
    kafka = kafka_settings(run.settings, bootstrap=session.stack.bootstrap)
    rate_per_s, base_s = options.vectors_per_s / options.passages, list[float]()
    session.recorder.wait(asker.ask(options.warm_up_s).keys())
    began_us = SystemClock().now_us()
    with ThreadPoolExecutor(2, "load") as pool:
        try:
            asked = pool.submit(asker.ask_until, over.is_set)
            written = pool.submit(writer.run, rate_per_s, over.is_set)
            time.sleep(options.seconds)
            for number in range(1, options.swaps + 1):
                began_s = time.monotonic()
                save_base(kafka, ClientSettings(), SystemClock(), run.note, over.is_set)
                base_s.append(time.monotonic() - began_s)
                while len(spans(searcher.log_file, SWAPPED)) < number:
                    if time.monotonic() > began_s + base_s[-1] + SWAP_TIMEOUT_S:
                        raise CarpoolError(f"no swap; its log ends\n{searcher.log_tail()}")
                    time.sleep(0.2)
                run.note(f"{number} of {options.swaps} swaps")
            time.sleep(2.0)
        finally:
            over.set()
        load = asked.result()
        written.result()
    session.recorder.wait(load.keys())
    swaps = spans(searcher.log_file, SWAPPED)
    records = session.recorder.records(ANSWERS.name)
    times_us = [one.received_us for one in records if one.key in load]
    second_us, first_us = 1_000_000, swaps[0].began_us
    quiet = [Span(at, at + second_us) for at in range(began_us, first_us - second_us, second_us)]
    return Swaps(
        swaps=len(swaps),
        beside=round(searcher.metric("carpool_corpus_base_swaps_total", how="beside")),
        swap_s=[(one.ended_us - one.began_us) / 1e6 for one in swaps],
        base_s=spread(base_s),
        gap_ms=[longest_gap_ms(times_us, one) for one in swaps],
        gap_quiet_ms=spread(longest_gap_ms(times_us, one) for one in quiet),
        questions_ms=spread(session.answered_ms(load).values()),
        accounting=answer_accounting(load, session.answers(load)),
        mixed=len(mixed(retrievals(session), session, writer.puts)),
    )
