"""The loads of `carpool bench paper hedrarag`: offline, at rising rates, and with a kill."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from statistics import fmean, median
from typing import Any

import msgspec

from bench.core.cpu import COMPILERS, CpuMeter
from bench.core.load import poisson
from bench.core.run import figures
from bench.core.spread import Spread, spread
from bench.core.stack import ServiceProcess
from bench.papers.hedrarag.baselines import Asked
from bench.papers.hedrarag.contestants import BROKER, HOP, Contestant, wait_until
from carpool.clock import SystemClock

FIVE = ("hyde", "multistep", "irg", "recomp", "corrective")
MIXED, STEPS = "mixed", "steps"
LOADS = {MIXED: FIVE, STEPS: ("one_shot", *FIVE)} | {name: (name,) for name in FIVE}
"""The workflows of a load, one question each in turn."""
SLO_S = 10.0
OFFLINE = 64
"""Questions of an offline load."""
RATES = tuple(0.25 * 1.25**step for step in range(30))
QUESTIONS_MIN = 10
DRAIN_S = 120.0
KILL_PER_S, KILL_QUESTIONS = 2.0, 40


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """One load; `rate_per_s` 0: offline. `latency_s`: from when a question was due to its answer.

    By workflow: `p50_s`, and `steps`: the mean number of its rounds and its answer. CPU is without
    `idle_ms`, what the processes take in as many idle seconds; `with_broker_ms` has the broker, and
    the bare hop beside a baseline too.
    """

    rate_per_s: float
    questions: int
    answered: int
    answered_twice: int
    texts: int
    errors: tuple[str, ...]
    took_s: float
    latency_s: Spread | None
    p50_s: dict[str, float]
    steps: dict[str, float]
    cpu_ms_a_question: float
    with_broker_ms: float
    cpu_ms: dict[str, float]
    idle_ms: float

    @property
    def is_complete(self) -> bool:
        """Whether each question has one answer."""
        return self.answered == self.questions and not (self.answered_twice or self.errors)

    @property
    def holds(self) -> bool:
        """Whether each question has an answer, and 99 of 100 within the SLO."""
        return self.is_complete and self.latency_s is not None and self.latency_s.p99 <= SLO_S


class Loads:
    """Asks questions: for each load the same ones of every contestant, with new ids."""

    def __init__(
        self, texts: Sequence[str], seed: int, seconds: float, note: Callable[[str], None]
    ) -> None:
        """`seconds`: of a load at a rate. `note`: gets a line for each load."""
        self._texts, self._seed, self._seconds, self._note = texts, seed, seconds, note
        self._run = 0

    def ask(
        self,
        contestant: Contestant,
        name: str,
        rate_per_s: float,
        count: int,
        halfway: Callable[[], None] = lambda: None,
    ) -> Load:
        """Sends questions at times of a Poisson process, and waits for the answers. Blocks.

        `halfway`: is called after half of the questions.
        """
        questions = self._questions(name, rate_per_s, count)
        times_us = poisson(rate_per_s, self._seed) if rate_per_s else iter([0] * count)
        meter, due_us = CpuMeter(contestant.processes), {}
        meter.start()
        began_us = SystemClock().now_us()
        for at, (asked, at_us) in enumerate(zip(questions, times_us, strict=False)):
            if at == count // 2:
                halfway()
            due_us[asked.id] = began_us + at_us
            time.sleep(max(0, due_us[asked.id] - SystemClock().now_us()) / 1e6)
            contestant.send(asked)
        wait_until(lambda: due_us.keys() <= contestant.seen().keys(), DRAIN_S)
        took_s = (SystemClock().now_us() - began_us) / 1e6
        meter.stop()  # by its end, answers that come twice have come
        cpu_ms = {name: 1e3 * used_s / count for name, used_s in meter.work_s.items()}
        del cpu_ms[COMPILERS]
        every = {key: each for key, each in contestant.seen().items() if key in due_us}
        seen = {key: each[0] for key, each in every.items()}
        took = {key: (one.at_us - due_us[key]) / 1e6 for key, one in seen.items()}
        ids: dict[str, list[str]] = {}
        for asked in questions:
            if asked.id in seen:
                ids.setdefault(asked.workflow, []).append(asked.id)
        load = Load(
            rate_per_s=rate_per_s,
            questions=len(questions),
            answered=len(seen),
            answered_twice=sum(len(each) - 1 for each in every.values()),
            texts=sum(each.texts for each in seen.values()),
            errors=tuple(each.error for each in seen.values() if each.error),
            took_s=took_s,
            latency_s=spread(took.values()),
            p50_s={each: median(took[key] for key in keys) for each, keys in ids.items()},
            steps={each: fmean(seen[key].steps for key in keys) for each, keys in ids.items()},
            cpu_ms_a_question=sum(cpu_ms[name] for name in cpu_ms if name not in (BROKER, HOP)),
            with_broker_ms=sum(cpu_ms.values()),
            cpu_ms=cpu_ms,
            idle_ms=1e3 * sum(meter.idle_s[name] for name in cpu_ms) / count,
        )
        self._note(f"{name}: {dict(figures(load))}")
        return load

    def curve(self, contestant: Contestant, name: str) -> dict[str, Any]:
        """Asks offline, then at rates from 0.4 of that up to the first over the SLO. Blocks."""
        loads = [self.ask(contestant, name, 0.0, OFFLINE)]
        offline_per_s = OFFLINE / loads[0].took_s
        for rate_per_s in (rate for rate in RATES if rate > 0.4 * offline_per_s):
            count = max(QUESTIONS_MIN, round(rate_per_s * self._seconds))
            loads.append(self.ask(contestant, name, rate_per_s, count))
            if not loads[-1].holds:
                break
        best = max(
            (one for one in loads[1:] if one.holds), key=lambda one: one.rate_per_s, default=None
        )
        return {
            "offline_per_s": offline_per_s,
            "at_slo": best,  # the load at the highest rate within the SLO
            "loads": tuple(loads),
        }

    def kill(self, contestant: Contestant, llm: ServiceProcess) -> dict[str, float]:
        """Kills the contestant in the middle of a mixed load, and starts it again. Blocks.

        `paid_twice`: calls beyond one for each text that an answer needed.
        """
        before, restart = _calls(llm), contestant.kill_and_restart
        load = self.ask(contestant, MIXED, KILL_PER_S, KILL_QUESTIONS, halfway=restart)
        return {
            "questions": load.questions,
            "lost": load.questions - load.answered,
            "answered_twice": load.answered_twice,
            "texts": load.texts,
            "paid_twice": _calls(llm) - before - load.texts,
        }

    def _questions(self, load: str, rate_per_s: float, count: int) -> list[Asked]:
        self._run += 1
        workflows = LOADS[load]
        drawn = random.Random(f"{self._seed} {load} {rate_per_s}").sample(self._texts, count)
        return [
            Asked(f"{self._run}-{at}", text, workflows[at % len(workflows)])
            for at, text in enumerate(drawn)
        ]


class _Calls(msgspec.Struct):
    started: int


def _calls(llm: ServiceProcess) -> int:
    """Returns the requests that the server has begun."""
    return msgspec.json.decode(llm.page("/_requests")[1].encode(), type=_Calls).started
