"""`carpool eval`: figures over the answers of a batch, and what differs between two runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from carpool.errors import ConfigError
from carpool.evaluation.files import read_answers, read_gold, write_page
from carpool.evaluation.report import Comparison, Report, compare, report
from cli.batch import How, Money, Running, work_off
from cli.console import output, people, print_json, table
from cli.options import ClientArgs, JsonOption, spread

LINES_SHOWN = 10
"""Numbers of lines that a message names."""


@spread
def evaluate(
    questions: Annotated[Path, typer.Argument(help="JSON lines, as `carpool batch` takes them.")],
    how: How,
    answers: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="The output of `carpool batch run`. Default: it is run here."
        ),
    ] = None,
    runs: Annotated[
        tuple[Path, Path] | None,
        typer.Option("--compare", metavar="RUN1 RUN2", help="Two outputs: what differs?"),
    ] = None,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write one page with every answer, too.")
    ] = None,
    as_json: JsonOption = False,
    *,
    sources: ClientArgs,
) -> None:
    """Evaluate the answers of a batch: are they right, and what are they cited for?

    Without --answers the batch is run, or goes on, as by `carpool batch run QUESTIONS`. A line of
    QUESTIONS may have `answers`, texts of which any is right, and `passages`, ids of which any
    should be found. Means have 95 % intervals. A citation is judged by the words that its passage
    and its sentence share, as in each answer, and by no model. A line without an answer counts in
    no figure; an answer that failed counts as wrong.

    --compare prints the lines whose status, text, figures, passages or citations differ, and the
    mean differences of the lines that both runs have, with intervals of paired values.

    \b
    Examples:
      carpool eval questions.jsonl --workflow multistep
      carpool eval questions.jsonl --answers answers.jsonl --html report.html
      carpool eval questions.jsonl --compare before.jsonl after.jsonl
    """
    gold = read_gold(questions)
    if runs is not None:
        if answers or html:
            raise ConfigError("--compare takes two runs, without --answers and --html")
        compared = compare(gold, *(read_answers(path, gold) for path in runs))
        print_json(compared) if as_json else _print_comparison(compared)
        return
    if answers is None:
        answers, _ = work_off(questions, how, Running(), Money(), sources)
    found = report(gold, read_answers(answers, gold))
    if html is not None:
        write_page(found, html)
    print_json(found) if as_json else _print_report(found)


def _print_report(found: Report) -> None:
    rows = table("figure", "mean (95 % interval)", "answers", right=("answers",))
    for name, figure in found.figures.items():
        rows.add_row(name, str(figure), str(figure.lines))
    for name, value in _others(found).items():
        rows.add_row(name, value)
    output().print(rows)
    _tell_missing(found, "without an answer")


def _print_comparison(found: Comparison) -> None:
    for change in found.changes:
        shown = Text(f"{change.line:>5} ", "cyan") + Text(change.question or "", "bold")
        for name, values in change.differs.items():
            shown += Text(f"\n      {name:<13}{_difference(*values)}", "default")
        output().print(shown, soft_wrap=True)
    columns = ("figure", "first", "second", "difference (95 %)", "answers")
    rows = table(*columns, right=("answers",), whole=("figure", "difference (95 %)"))
    runs = (found.before, found.after)
    for name, difference in found.differences.items():
        means = (f"{run.figures[name].share:.2f}" for run in runs)
        rows.add_row(name, *means, str(difference), str(difference.lines))
    first, second = map(_others, runs)
    for name in first | second:
        rows.add_row(name, first.get(name, ""), second.get(name, ""))
    output().print(rows)
    output().print(f"{len(found.changes)} of {found.before.lines} lines differ")
    _tell_missing(found.before, "that are not in both runs")


def _others(of: Report) -> dict[str, str]:
    """Returns what a report has besides figures: statuses, tokens, times."""
    return (
        {f"status {name}": str(figure) for name, figure in of.statuses.items()}
        | {f"{name} tokens": f"{count:,}" for name, count in of.tokens.items()}
        | {
            f"{stage}, ms (p50, p99)": f"{cuts['p50']:,.1f}, {cuts['p99']:,.1f}"
            for stage, cuts in of.timings_ms.items()
        }
    )


def _tell_missing(of: Report, why: str) -> None:
    if of.missing:
        named, count = ", ".join(map(str, of.missing[:LINES_SHOWN])), len(of.missing)
        more = f", … ({count} in all)" if count > LINES_SHOWN else ""
        people().print(f"lines {why}, which no figure counts: {named}{more}")


def _difference(old: Any, new: Any) -> str:
    """Returns what was and what is; of lists, what went and what came."""
    if isinstance(old, list) and isinstance(new, list):
        gone = [f"-{each}" for each in old if each not in new]
        came = [f"+{each}" for each in new if each not in old]
        return " ".join([*gone, *came]) or f"in another order or number: {' '.join(new)}"
    both = [f"{each:.2f}" if isinstance(each, float) else str(each) for each in (old, new)]
    return " ".join(" -> ".join(both).split())
