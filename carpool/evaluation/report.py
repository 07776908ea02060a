"""The figures of a run, and what differs between two. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import quantiles
from typing import Any

import msgspec
from msgspec import structs

from carpool.evaluation.judging import HIT_RATES, Gold, Judged, judge
from carpool.evaluation.shares import Share, difference_of, mean_of, share_of
from schemas.answer import Usage
from schemas.batch import AnswerLine

FIGURES = (
    *HIT_RATES.values(),
    *("mrr", "answer_match", "f1", "citation_precision", "citation_recall"),
    *("gold_passage_cited", "cited_passages_gold", "grounded"),
)
"""In this order. Each is a mean over the answers that have it."""
_MEANS = ("mrr", "f1")


class Figure(Share, frozen=True, kw_only=True):
    """A share or mean over so many `lines`, or the mean of so many differences."""

    lines: int


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of a run by name, its statuses, sums of tokens, and times by stage.

    `missing`: numbers of lines without an answer; no figure counts them. `timings_ms`: the
    percentiles `p50` and `p99`, interpolated.
    """

    lines: int
    missing: tuple[int, ...]
    figures: dict[str, Figure]
    statuses: dict[str, Figure]
    tokens: dict[str, int]
    timings_ms: dict[str, dict[str, float]]
    rows: tuple[Judged, ...]


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """What differs between two answers of a line: by name, the first value and the second."""

    line: int
    question: str | None
    differs: dict[str, tuple[Any, Any]]


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Two runs, over the lines that both have; the others are `missing` in both, without rows.

    `differences`: second minus first, by the name of the figure, of lines that have it in both.
    """

    before: Report
    after: Report
    differences: dict[str, Figure]
    changes: tuple[Change, ...]


def report(gold: Mapping[int, Gold], answers: Mapping[int, AnswerLine]) -> Report:
    """Returns the report of a run; both by number of line."""
    rows = tuple(judge(answers[line], gold[line]) for line in sorted(answers))
    reach = max((len(row.answer.retrieved) for row in rows), default=0)
    beyond = {name for k, name in HIT_RATES.items() if k > max(1, reach)}
    found = {name: [row.values[name] for row in rows if name in row.values] for name in FIGURES}
    statuses = [row.answer.status for row in rows]
    used = [row.answer.tokens or Usage() for row in rows]
    tokens = {
        each: sum(getattr(usage, f"{each}_tokens") for usage in used)
        for each in ("input", "cached", "output")
    }
    times = dict[str, list[float]]()
    for row in rows:
        for stage, ms in row.answer.timings_ms.items():
            times.setdefault(stage, []).append(ms)
    return Report(
        lines=len(rows),
        missing=tuple(line for line in gold if line not in answers),
        figures={
            name: _figure((mean_of if name in _MEANS else share_of)(values), values)
            for name, values in found.items()
            if values and name not in beyond
        },
        statuses={
            each: _figure(share_of(one == each for one in statuses), statuses)
            for each, _ in Counter(statuses).most_common()
        },
        tokens=tokens | {"total": tokens["input"] + tokens["output"]},
        timings_ms={stage: _percentiles(values) for stage, values in times.items()},
        rows=rows,
    )


def compare(
    gold: Mapping[int, Gold], first: Mapping[int, AnswerLine], second: Mapping[int, AnswerLine]
) -> Comparison:
    """Returns what differs between two runs of the same questions; all by number of line."""
    both = first.keys() & second.keys()
    before, after = (report(gold, {line: run[line] for line in both}) for run in (first, second))
    rows = list(zip(before.rows, after.rows, strict=True))
    pairs = {
        name: [
            (old.values[name], new.values[name])
            for old, new in rows
            if name in old.values and name in new.values
        ]
        for name in before.figures
        if name in after.figures
    }
    changes = []
    for old, new in rows:
        values, others = _compared(old), _compared(new)
        differs = {name: (one, others[name]) for name, one in values.items() if one != others[name]}
        if differs:
            changes.append(
                Change(line=new.answer.line, question=new.answer.question, differs=differs)
            )
    return Comparison(
        before=structs.replace(before, rows=()),
        after=structs.replace(after, rows=()),
        differences={name: _figure(difference_of(each), each) for name, each in pairs.items()},
        changes=tuple(changes),
    )


def _compared(row: Judged) -> dict[str, Any]:
    """Returns what is compared of an answer; citations by passage, `?` behind one without support.

    The order of citations is that of the answer, which is compared anyway.
    """
    return {
        "status": row.answer.status,
        "answer": row.answer.answer,
        "answer_match": row.values.get("answer_match"),
        "f1": row.values.get("f1"),
        "retrieved": [one.id for one in row.answer.retrieved],
        "citations": sorted(
            f"{one.doc_id}{'' if one.quote else ' ?'}" for one in row.answer.citations
        ),
    }


def _figure(share: Share, over: Sequence[object]) -> Figure:
    return Figure(share=share.share, low=share.low, high=share.high, lines=len(over))


def _percentiles(values: list[float]) -> dict[str, float]:
    cuts = quantiles(values * 2 if len(values) == 1 else values, n=100, method="inclusive")
    return {"p50": cuts[49], "p99": cuts[98]}
