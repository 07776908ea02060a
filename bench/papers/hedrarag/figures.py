"""`carpool bench paper hedrarag`: workflows under load, Carpool's and those of others."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from bench.core.kafka import kafka_version
from bench.core.run import figures
from bench.core.session import Session
from bench.core.stack import ServiceProcess, clean_environment, llm_url
from bench.data.evaluation import QUESTIONS
from bench.data.index import BenchIndex
from bench.papers.hedrarag.contestants import (
    LANGGRAPH,
    NAMES,
    OF_SUBSTAGES,
    open_contestant,
    python_of,
)
from bench.papers.hedrarag.loads import FIVE, MIXED, STEPS, Loads, by_rate
from bench.papers.hedrarag.regime import collection_index, measured_alone, settings_of
from bench.papers.options import HedraRagOptions
from bench.services.corpus import CorpusRun
from bench.services.options import CorpusOptions
from carpool.embedding import EmbeddingSettings
from carpool.errors import ConfigError
from carpool.kafka.embedded import free_port

KILLED = ("langgraph", "carpool")
"""The contestants whose workflows survive a kill."""
LLM_MODULE = "bench.papers.hedrarag.stepped_llm"
RATES = "p50; p99 [95 %], s; searches a second; MB a question"
WARM_UP_PER_S, WARM_UP = 4.0, 40
STEPS_PER_S, STEPS_QUESTIONS = 4.0, 240
"""Of the load `steps`: low, so that no question waits for another."""


class HedraRagRun(CorpusRun):
    """A run: the index, the loads, and the contestants, one after the other."""

    def __init__(self, options: HedraRagOptions) -> None:
        """Builds the index if absent, which blocks. Raises `CarpoolError`."""
        self._python = python_of(options.langgraph)
        super().__init__("hedrarag", options)
        self.note(f"baselines: {', '.join(LANGGRAPH)} in {options.langgraph}")
        if options.collection is not None:
            self.settings |= settings_of(self.index, options)
        self.files = [self.data.file(f"{name}.jsonl.gz") for name in QUESTIONS]
        texts = [one.text for name in QUESTIONS for one in self.data.questions(name) if one.text]
        self.loads = Loads(texts, options, self.note)
        self.texts, self._options = texts, options

    def open_index(self, options: CorpusOptions, embedding: EmbeddingSettings) -> BenchIndex:
        """Returns the index of the collection; without one, that of the passages."""
        assert isinstance(options, HedraRagOptions)
        if options.collection is not None:
            return collection_index(options.collection, options.seed)
        return super().open_index(options, embedding)

    def llm(self, speed: float) -> ServiceProcess:
        """Returns an LLM server that is not started."""
        port, cache = free_port(), "no-cache" if self._options.collection is None else "cache"
        return ServiceProcess(
            [sys.executable, "-m", LLM_MODULE, str(port), str(speed), cache],
            environ=clean_environment(),
            log_file=self.folder / "llm.log",
            port=port,
        )

    @contextmanager
    def opened(self, name: str, speed: float) -> Iterator[tuple[Session, ServiceProcess]]:
        """Yields a contestant that is warm, and its LLM server. `speed` 0: answers at once."""
        with (
            self.llm(speed) as llm,
            open_contestant(
                name,
                index=self.index.dir,
                url=llm_url(llm.port),
                work=self.folder / name,
                settings=self.settings,
                python=self._python,
            ) as session,
        ):
            self.loads.ask(session, MIXED, WARM_UP_PER_S, WARM_UP)
            yield session, llm

    def steps(self) -> dict[str, dict[str, float]]:
        """Returns what each workflow takes with an LLM that answers at once, and a step of it."""
        with self.opened("carpool", 0.0) as (session, _):
            load = self.loads.ask(session, STEPS, STEPS_PER_S, STEPS_QUESTIONS)
        return {
            name: {
                "steps": load.steps[name],
                "p50_ms": 1e3 * p50_s,
                "p50_ms_a_step": 1e3 * p50_s / load.steps[name],
            }
            for name, p50_s in load.p50_s.items()
        }


def run(options: HedraRagOptions) -> bool:
    if unknown := {*options.workflow} - {MIXED, *FIVE}:
        raise ConfigError(f"there is no {unknown}; there are {', '.join((MIXED, *FIVE))}")
    names = (*NAMES, *(OF_SUBSTAGES if options.collection and options.mode == "exact" else ()))
    if unknown := {*options.contestant} - {*names}:
        raise ConfigError(f"there is no {unknown}; there are {', '.join(names)}")
    run, kills_too = HedraRagRun(options), MIXED in options.workflow and not options.collection
    alone: dict[str, Any] = {}
    if options.collection is not None:
        with run.llm(options.speed) as llm:
            alone = measured_alone(run.index, run.settings, run.texts, llm_url(llm.port))
        run.note(f"alone: {dict(figures(alone))}")
    curves: dict[str, dict[str, Any]] = {}
    kills: dict[str, dict[str, float]] = {}
    for name in options.contestant or names:
        run.note(name)
        with run.opened(name, options.speed) as (session, llm):
            for load in options.workflow:
                curves[f"{load}, {name}"] = run.loads.curve(session, load)
            if kills_too and name in KILLED:
                kills[name] = run.loads.kill(session, llm)
    rates = {name: by_rate(curve) for name, curve in curves.items()}
    steps = run.steps() if kills_too else {}

    return run.finish(
        {"alone": alone, RATES: rates, "load": curves, "kill": kills, STEPS: steps},
        promises=promises(curves, kills),
        results={"alone": alone, "curves": curves, "kills": kills, "steps": steps},
        broker=f"Apache Kafka {kafka_version()}, started for the run",
        baselines=LANGGRAPH,
        **run.facts(*run.files),
    )


def promises(
    curves: Mapping[str, Mapping[str, Any]], kills: Mapping[str, Mapping[str, float]]
) -> dict[str, bool]:
    """Returns each promise, of Carpool alone, and whether it was kept."""
    kept = {
        f"{name}: each question has one answer": all(one.accounting.holds for one in curve["loads"])
        for name, curve in curves.items()
        if name.endswith(", carpool")
    }
    if (kill := kills.get("carpool")) is not None:
        is_kept = kill["lost"] == kill["answered_twice"] == 0
        kept["carpool, killed: each question has one answer"] = is_kept
    return kept
