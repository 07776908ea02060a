"""`carpool batch`: a file of questions in, a file of answers out."""

from __future__ import annotations

from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from carpool.clock import SystemClock
from carpool.errors import ConfigError
from cli.answers import ANSWERED
from cli.batch_shown import RunReport, batch_values, batches_table, values_table
from cli.console import people, quiet_logs, show_result
from cli.exit_codes import FAILED, INTERRUPTED
from cli.interrupts import stopped_by_signals
from cli.options import ClientArgs, JsonOption, command_group, spread
from cli.settings import BatchSide, load_client_side
from cli.workflows import workflow_of
from producers.batch.batch_log import find_batch, read_batches
from producers.batch.change import BatchCommands
from producers.batch.costs import Costs, Prices
from producers.batch.input_file import InputFile, open_input
from producers.batch.output_file import OutputFile, replaced, write_ordered
from producers.batch.plan import BatchPlan
from producers.batch.run import BatchRun
from schemas.answer import Status
from schemas.batch import Batch, BatchOptions

CLOCK = SystemClock()
AGAIN: tuple[Status, ...] = ("failed", "partial", "expired", "shed")
"""Lines with such an answer can be asked again."""
CHAR_TOKENS_MAX = 4
"""Tokens of a character, at most: those of models have at least a byte of UTF-8."""
TEMPLATE_TOKENS = 100
"""What a server adds to a prompt around its messages, at most."""

app = command_group(
    "batch",
    """Answer a file of questions: each line once, in a run that may end and go on.

\b
  carpool batch run questions.jsonl --estimate            what would it cost?
  carpool batch run questions.jsonl --out answers.jsonl   answer it; again: go on
  carpool batch list                                      all batches
  carpool batch retry 3f9a --status failed                ask these lines again
""",
)
app.callback()(quiet_logs)

BatchName = Annotated[
    str, typer.Argument(metavar="BATCH", help="The start of its id, as `list` shows it.")
]


@dataclass(frozen=True, kw_only=True)
class How:
    """How the questions are answered. Each option makes another batch of the same file."""

    workflow: Annotated[
        str | None,
        typer.Option(metavar="NAME|FILE.json", help="Program of `carpool workflows`, or a graph."),
    ] = None
    model: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The model that must answer; `carpool`: any. Wins over the models of the lines.",
        ),
    ] = None
    top_k: Annotated[int | None, typer.Option(min=1, max=100, help="Passages to find.")] = None
    max_tokens: Annotated[
        int | None, typer.Option(min=1, max=32_768, help="Most tokens of an answer.")
    ] = None

    def options(self) -> BatchOptions:
        """Returns them as they are stored. Raises `ConfigError` for a graph that is none."""
        workflow = workflow_of(self.workflow)
        return BatchOptions(
            workflow=workflow if workflow is None or isinstance(workflow, str) else dict(workflow),
            model=self.model,
            top_k=self.top_k,
            max_tokens=self.max_tokens,
        )


@dataclass(frozen=True, kw_only=True)
class Money:
    """What tokens cost. The currency is the user's."""

    price_in: Annotated[
        float | None,
        typer.Option(min=0, help="Price of a million tokens of prompts. Default: client.price_in."),
    ] = None
    price_out: Annotated[
        float | None,
        typer.Option(min=0, help="The same of answers. Default: client.price_out."),
    ] = None
    max_cost: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="Send no question that could make all answers cost more. Needs prices, and "
            "--max-tokens.",
        ),
    ] = None

    def prices(self, side: BatchSide, max_tokens: int | None) -> Prices:
        """Returns the prices. Raises `ConfigError` where a limit lacks what it is made of."""
        prices = Prices(
            input=side.client.price_in if self.price_in is None else self.price_in,
            output=side.client.price_out if self.price_out is None else self.price_out,
            cost_max=self.max_cost,
            prompt_tokens=CHAR_TOKENS_MAX * side.generator.prompt_chars_max + TEMPLATE_TOKENS,
            steps=side.workflow.steps_max + 1,
        )
        if self.max_cost is not None and (max_tokens is None or not prices.of(1, 1)):
            raise ConfigError("--max-cost needs --max-tokens, --price-in and --price-out")
        return prices


@dataclass(frozen=True, kw_only=True)
class Running:
    """How the file is worked off."""

    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FILE", help="Default: NAME.answers.jsonl."),
    ] = None
    in_flight: Annotated[
        int, typer.Option(min=1, max=100_000, help="Questions that are asked at a time.")
    ] = 1_000
    ordered: Annotated[
        bool,
        typer.Option("--ordered", help="At the end, also write OUT.ordered.jsonl: one line each."),
    ] = False
    estimate: Annotated[
        bool, typer.Option("--estimate", help="Ask a sample only, and say what the rest will cost.")
    ] = False
    sample: Annotated[
        int, typer.Option(min=1, metavar="N", help="Answers that --estimate needs.")
    ] = 20
    take_over: Annotated[
        bool, typer.Option("--take-over", help="Take the place of another runner at once.")
    ] = False

    def asked(self) -> int | None:
        """Returns how many answers are enough; None: all lines are asked."""
        return self.sample if self.estimate else None

    def paths(self, file: Path) -> tuple[Path, Path, Path]:
        """Returns the output, the file of errors and the ordered output. Raises `ConfigError`."""
        out = self.out or file.with_name(f"{file.stem}.answers.jsonl")
        names = (f"{out.stem}.{each}.jsonl" for each in ("errors", "ordered"))
        errors, in_order = map(out.with_name, names)
        if file.resolve() in [each.resolve() for each in (out, errors, in_order)]:
            raise ConfigError(f"{file} has the questions, and would be written: give another --out")
        return out, errors, in_order


@app.command()
@spread
def run(
    file: Annotated[Path, typer.Argument(help="Questions, one a line, as text or JSON.")],
    how: How,
    running: Running,
    money: Money,
    as_json: JsonOption = False,
    *,
    sources: ClientArgs,
) -> None:
    """Ask all questions of a file. The same command goes on, here or on another machine.

    A line is a line of OpenAI's batches; or JSON with `text` and, as wanted, `custom_id`, `top_k`,
    `workflow`, `generation`; or plain text. All lines are checked before one is sent. Those that
    cannot be asked are named in OUT.errors.jsonl, and the others are asked.

    The output has a JSON line for each answer, as it comes: line, custom_id, status, answer,
    citations, tokens, error. Of lines with the same `line` the last one counts. What is answered is
    known from rag.answers.v1, for as long as it keeps answers (7 days), and from the output.

    Exit code 1: a line was refused, has no answer, or was not asked; 130: after Ctrl-C.

    \b
    Examples:
      carpool batch run questions.jsonl --estimate --price-in 0.15 --price-out 0.60
      carpool batch run questions.jsonl --out answers.jsonl --ordered
      carpool batch run questions.txt --max-tokens 200 --price-out 0.60 --max-cost 5
    """
    _, found = work_off(file, how, running, money, sources)
    show_result(found, values_table(found), as_json=as_json)
    if found.get("ended") == "stopped":
        raise typer.Exit(INTERRUPTED)
    good = sum(found.get(each, 0) for each in ANSWERED)
    if not running.estimate and (found["refused"] or good < found["questions"]):
        raise typer.Exit(FAILED)


def work_off(
    file: Path, how: How, running: Running, money: Money, sources: ClientArgs
) -> tuple[Path, dict[str, Any]]:
    """Runs a batch; returns its output, and what is known of the batch then, or the estimate.

    Blocks. Raises `ConfigError` and `RetryableError`.
    """
    side = load_client_side(sources.given(), BatchSide)
    costs = Costs(money.prices(side, how.max_tokens))
    out, errors, in_order = running.paths(file)
    with ExitStack() as stack:
        report = stack.enter_context(RunReport(people(), costs))
        output_file = stack.enter_context(closing(OutputFile(out)))
        source = stack.enter_context(closing(_checked(file, how.options(), errors, report)))
        left_out = (*source.refused, *source.blank)
        plan = report.plan = BatchPlan(source.facts.lines, running.in_flight, left_out)
        parts = (side.kafka, side.client, CLOCK, source, output_file, plan, costs, report.tell)
        runner = stack.enter_context(closing(BatchRun(*parts)))
        stack.enter_context(stopped_by_signals(runner.stop))
        ended = runner.run(takes_over=running.take_over, sample=running.asked())
        if running.ordered and ended == "done":
            write_ordered([errors, out], in_order, source.facts.lines)
    people().print(f"{out}: {report.told(ended, source)}")
    return out, report.estimate(source) if running.estimate else report.end(ended, source)


def _checked(file: Path, options: BatchOptions, errors: Path, report: RunReport) -> InputFile:
    """Returns the open input; the file of errors has the lines that cannot be asked."""
    with replaced(errors) as refused:
        source = open_input(file, options, refused, report.checked)
    if not source.refused:
        errors.unlink()
    report.begin(source, errors)
    return source


def _batches(sources: ClientArgs) -> dict[str, Batch]:
    return read_batches(sources.settings().kafka, CLOCK)


@app.command("list")
@spread
def list_batches(as_json: JsonOption = False, *, sources: ClientArgs) -> None:
    """List the batches that rag.batches.v1 has, the last changed one last."""
    batches = sorted(_batches(sources).values(), key=lambda each: each.updated_ms)
    show_result(batches, batches_table(batches), as_json=as_json)


@app.command()
@spread
def show(name: BatchName, as_json: JsonOption = False, *, sources: ClientArgs) -> None:
    """Show what is known of a batch: file, options, answers by status, runner."""
    batch = find_batch(_batches(sources), name)
    show_result(batch, values_table(batch_values(batch)), as_json=as_json)


@app.command()
@spread
def cancel(name: BatchName, *, sources: ClientArgs) -> None:
    """End a batch: nothing more is sent, and what is in flight is withdrawn.

    `carpool batch run` with the same file goes on, and asks the withdrawn lines again.
    """
    batch = find_batch(_batches(sources), name)
    with closing(_commands(sources)) as commands:
        ended = commands.cancel(batch)
    left = ended.file.questions - sum(ended.counts.values())
    people().print(f"the batch is {ended.state}; {left:,} questions have no answer")


@app.command()
@spread
def retry(
    name: BatchName,
    status: Annotated[
        list[str],
        typer.Option("--status", metavar="STATUS", help=f"One of: {', '.join(AGAIN)}."),
    ],
    *,
    sources: ClientArgs,
) -> None:
    """Ask the lines again whose answer has a status, such as `failed`.

    A run that is in progress asks them; else `carpool batch run` with the same file does. Their new
    answers are appended to the output, where the last line of each `line` counts.

    \b
    Examples:
      carpool batch retry 3f9a --status failed --status expired
    """
    if wrong := [each for each in status if each not in AGAIN]:
        raise ConfigError(f"--status {wrong[0]}: these are asked again: {', '.join(AGAIN)}")
    statuses: list[Status] = [each for each in AGAIN if each in status]
    batch = find_batch(_batches(sources), name)
    count = sum(batch.counts.get(each, 0) for each in statuses)
    if not (count or batch.runner):
        raise ConfigError(f"batch {name} has no answer that is {' or '.join(statuses)}")
    with closing(_commands(sources)) as commands:
        commands.retry(batch, statuses)
    goes_on = "the run in progress asks them" if batch.runner else "now run the batch again"
    people().print(f"{count:,} lines are to be asked again: {goes_on}")


def _commands(sources: ClientArgs) -> BatchCommands:
    settings = sources.settings()
    return BatchCommands(settings.kafka, settings.client, CLOCK)
