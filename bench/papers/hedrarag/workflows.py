"""`carpool bench paper hedrarag`: workflows under load, Carpool's and those of others."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

from bench.core.stack import LOOPBACK, ServiceProcess, clean_environment
from bench.data.evaluation import QUESTIONS
from bench.papers.hedrarag.contestants import NAMES, Contestant, open_contestant
from bench.papers.hedrarag.loads import FIVE, Loads
from bench.papers.options import HedraRagOptions
from bench.services.corpus import CorpusRun
from carpool.errors import ConfigError
from carpool.kafka.embedded import free_port
from carpool.testing.kafka import kafka_version

KILL, STEPS = "kill", "steps"
LOADS = ("one_shot", *FIVE, "mixed", KILL, STEPS)
DEFAULT_LOADS = LOADS[-3:]
KILLED = ("langgraph", "carpool")
"""The contestants whose workflows survive a kill."""
WARM_UP_PER_S, WARM_UP = 4.0, 40
STEPS_PER_S, STEPS_QUESTIONS = 4.0, 240
"""Of the load `steps`: low, so that no question waits for another."""


class HedraRagRun(CorpusRun):
    """A run: the index, the loads, and the contestants, one after the other."""

    def __init__(self, options: HedraRagOptions) -> None:
        """Builds the index if absent, which blocks. Raises `CarpoolError`."""
        super().__init__("hedrarag", options)
        self.files = [self.data.file(f"{name}.jsonl.gz") for name in QUESTIONS]
        texts = [one.text for name in QUESTIONS for one in self.questions(name) if one.text]
        self.loads = Loads(texts, options.seed, options.seconds, self.note)

    @contextmanager
    def opened(self, name: str, speed: float) -> Iterator[tuple[Contestant, ServiceProcess]]:
        """Yields a contestant that is warm, and its LLM server. `speed` 0: answers at once."""
        port, module = free_port(), "bench.papers.hedrarag.stepped_llm"
        llm = ServiceProcess(
            [sys.executable, "-m", module, str(port), str(speed)],
            environ=clean_environment(),
            port=port,
            log_file=self.folder / "llm.log",
            ready_page="/health",
        )
        llm.start()
        try:
            llm.wait_ready()
            with open_contestant(
                name,
                index=self.index.dir,
                url=f"http://{LOOPBACK}:{port}/v1",
                work=self.folder / name,
                settings=self.settings,
            ) as contestant:
                self.loads.ask(contestant, "mixed", WARM_UP_PER_S, WARM_UP)
                yield contestant, llm
        finally:
            llm.stop()

    def steps(self) -> dict[str, dict[str, float]]:
        """Returns what each workflow takes with an LLM that answers at once, and a step of it."""
        with self.opened("carpool", 0.0) as (contestant, _):
            load = self.loads.ask(contestant, STEPS, STEPS_PER_S, STEPS_QUESTIONS)
        return {
            name: {
                "steps": load.steps[name],
                "p50_ms": 1e3 * p50_s,
                "p50_ms_a_step": 1e3 * p50_s / load.steps[name],
            }
            for name, p50_s in load.p50_s.items()
        }


def run(options: HedraRagOptions) -> bool:
    """Runs the loads; returns whether every promise was kept. Raises `CarpoolError`. Blocks."""
    loads, names = options.loads or DEFAULT_LOADS, options.contestants or list(NAMES)
    if unknown := {*loads} - {*LOADS} | {*names} - {*NAMES}:
        raise ConfigError(f"there is no {unknown}; there are {', '.join((*LOADS, *NAMES))}")
    run = HedraRagRun(options)
    curves: dict[str, dict[str, Any]] = {}
    kills: dict[str, dict[str, float]] = {}
    for name in names if {*loads} - {STEPS} else ():
        if name == "langgraph" and not find_spec(name):
            run.note("left out: langgraph; pip install langgraph langgraph-checkpoint-sqlite")
            continue
        run.note(name)
        with run.opened(name, options.speed) as (contestant, llm):
            for load in loads:
                if load == KILL and name in KILLED:
                    kills[name] = run.loads.kill(contestant, llm)
                elif load not in (KILL, STEPS):
                    curves[f"{load}, {name}"] = run.loads.curve(contestant, load)
    steps = run.steps() if STEPS in loads else {}

    return run.finish(
        {"load": curves, KILL: kills, STEPS: steps},
        promises=promises(curves, kills),
        results={"curves": curves, "kills": kills, "steps": steps},
        broker=f"Apache Kafka {kafka_version()}, started for the run",
        **run.facts(*run.files),
    )


def promises(
    curves: Mapping[str, Mapping[str, Any]], kills: Mapping[str, Mapping[str, float]]
) -> dict[str, bool]:
    """Returns each promise, of Carpool alone, and whether it was kept."""
    return {
        f"{name}: each question has one answer": all(one.is_complete for one in curve["loads"])
        for name, curve in curves.items()
        if name.endswith(", carpool")
    } | {
        f"{name}, killed: each question has one answer": kill["lost"] == kill["answered_twice"] == 0
        for name, kill in kills.items()
        if name == "carpool"
    }
