"""`carpool bench drafts`: does it pay to compute a prompt while its search still runs?"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from statistics import median

import msgspec
from rich.console import Console
from rich.table import Table

from bench.core.progress import Tell, progress_bars
from bench.core.session import Session
from bench.data.evaluation import TRAFFIC
from bench.generation.cli import DraftsOptions
from bench.generation.llm_server import LlmAddress, llm_server
from bench.generation.real_drafts import (
    AT_ONCE,
    Arm,
    Round,
    both_stacks,
    disk_bytes_per_s,
    measure_round,
    questions_of,
)
from bench.services.corpus import CorpusRun, open_run

WARM_UP = 3
"""The first questions are not measured: from them the searcher learns how slow its disk is."""
WAIT_MAX = 0.4
COMPUTED_MAX = 1.25
ROUND_WAIT_MAX = 1.02


class DraftsResult(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of a run. `one_at_once`: two halves; in the second one the stack with drafts is
    asked first. `together`: eight questions at once. `as_it_is`: eight at once, with a disk that is
    not slowed down.
    """

    speculation: str
    search_s: float
    one_at_once: tuple[Round, ...]
    together: tuple[Round, ...]
    as_it_is: tuple[Round, ...]


class Rounds:
    """Measures rounds, each with questions of its own."""

    def __init__(self, run: CorpusRun, llm: LlmAddress, tell: Tell) -> None:
        self._run = run
        self._llm = llm
        self._tell = tell
        self._taken = 0

    def measure(
        self,
        sessions: tuple[Session, Session],
        name: str,
        *,
        rounds: int,
        questions: int,
        at_once: int = 1,
    ) -> tuple[Round, ...]:
        """Returns `rounds` rounds of `questions`; every second one has drafts first. Blocks."""
        found = []
        for number in range(rounds if questions else 0):
            asked = questions_of(self._run, self._taken, questions)
            self._taken += questions
            found.append(
                measure_round(
                    self._run,
                    self._llm,
                    sessions,
                    asked,
                    at_once=at_once,
                    drafts_first=number % 2 == 1,
                )
            )
            self._tell(name, number + 1, rounds)
        return tuple(found)


def run(options: DraftsOptions) -> bool:
    """Runs the benchmark; returns whether every promise was kept. Raises `CarpoolError`."""
    corpus = open_run("drafts", options)
    with (
        llm_server(options.llm_url, options.llm_model, options.llm, corpus.folder) as llm,
        progress_bars() as tell,
    ):
        result = measure(corpus, options, llm, tell)
    return corpus.finish(
        lambda console: print_drafts(console, result),
        promises=promises_of(result),
        results=result,
        **corpus.facts(corpus.data.questions_path(TRAFFIC)),
    )


def measure(run: CorpusRun, options: DraftsOptions, llm: LlmAddress, tell: Tell) -> DraftsResult:
    """Measures with a slow disk, then with the disk as it is. Blocks."""
    rounds = Rounds(run, llm, tell)
    one: tuple[Round, ...] = ()
    together: tuple[Round, ...] = ()
    as_it_is: tuple[Round, ...] = ()
    if options.one_at_once or options.together:
        speed = disk_bytes_per_s(run, options.search_s)
        with both_stacks(run, llm, options.speculation, speed) as sessions:
            rounds.measure(sessions, "first questions", rounds=1, questions=WARM_UP)
            half = options.one_at_once // 2
            one = rounds.measure(sessions, "one at once", rounds=2, questions=half)
            together = rounds.measure(
                sessions,
                "eight at once",
                rounds=options.rounds,
                questions=options.together,
                at_once=AT_ONCE,
            )
    if options.as_it_is:
        with both_stacks(run, llm, options.speculation, None) as sessions:
            rounds.measure(sessions, "first questions", rounds=1, questions=WARM_UP)
            as_it_is = rounds.measure(
                sessions,
                "disk as it is",
                rounds=options.rounds,
                questions=options.as_it_is,
                at_once=AT_ONCE,
            )
    return DraftsResult(
        speculation=options.speculation,
        search_s=options.search_s,
        one_at_once=one,
        together=together,
        as_it_is=as_it_is,
    )


def promises_of(result: DraftsResult) -> dict[str, bool]:
    """Returns each promise and whether it was kept."""
    promises: dict[str, bool] = {}
    if result.one_at_once:
        wait, computed = ratios(result.one_at_once)
        promises |= {
            f"one at once: wait at most {WAIT_MAX} of that without drafts": wait <= WAIT_MAX,
            f"one at once: computed tokens at most {COMPUTED_MAX} times": computed <= COMPUTED_MAX,
        }
    for name, rounds in (("eight at once", result.together), ("as it is", result.as_it_is)):
        if rounds:
            kept = all(each.wait_ratio <= ROUND_WAIT_MAX for each in rounds)
            promises[f"{name}: median wait never above {ROUND_WAIT_MAX} of without"] = kept
    if result.as_it_is:
        warm_ups = sum(each.with_drafts.warm_ups for each in result.as_it_is)
        promises["no warm-up for a search of milliseconds"] = warm_ups == 0
    return promises


def ratios(rounds: Sequence[Round]) -> tuple[float, float]:
    """Returns the median wait, and the computed tokens, with drafts over those without."""
    with_drafts, without = [each.with_drafts for each in rounds], [each.without for each in rounds]
    computed = [sum(arm.computed_tokens for arm in arms) for arms in (with_drafts, without)]
    return _median_wait(with_drafts) / _median_wait(without), computed[0] / computed[1]


def _median_wait(arms: Sequence[Arm]) -> float:
    return median(each.wait_ms for each in chain.from_iterable(arm.asked for arm in arms))


def print_drafts(console: Console, result: DraftsResult) -> None:
    """Prints two lines for each round."""
    columns = ("search ms", "wait ms", "of without", "computed", "of without", "warm-ups", "drafts")
    table = Table("round", "drafts", *columns, title=f"Drafts, speculation {result.speculation}")
    rounds = (
        *((f"one at once {n}", each) for n, each in enumerate(result.one_at_once, 1)),
        *((f"eight at once {n}", each) for n, each in enumerate(result.together, 1)),
        *((f"disk as it is {n}", each) for n, each in enumerate(result.as_it_is, 1)),
    )
    for name, each in rounds:
        table.add_row(name, "off", *_row(each.without, "", ""))
        ratio, computed = f"{each.wait_ratio:.2f}", f"{each.computed_ratio:.2f}"
        table.add_row("", "on", *_row(each.with_drafts, ratio, computed))
    console.print(table)


def _row(arm: Arm, wait_ratio: str, computed_ratio: str) -> tuple[str, ...]:
    return (
        f"{arm.search_ms:.0f}",
        f"{arm.wait_ms:.0f}",
        wait_ratio,
        str(arm.computed_tokens),
        computed_ratio,
        str(arm.warm_ups),
        str(arm.drafts),
    )
