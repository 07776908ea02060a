"""`carpool ask`, `publish` and `cancel`: a question from the command line."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Collection, Mapping
from contextlib import aclosing, suppress
from pathlib import Path

import typer
from rich.console import Console
from rich.text import Text

from carpool.clock import SystemClock
from carpool.errors import ConfigError, RecordError
from carpool.foreign_files import refuse_foreign
from carpool.kafka.topic_reader import read_topic
from cli.answers import (
    ANSWERED,
    answer_text,
    evidence_lines,
    step_line,
    text_after,
    timing_line,
)
from cli.console import output, people, print_json, print_json_line, print_plain
from cli.exit_codes import FAILED
from cli.options import Beside, JsonOption, spread
from cli.settings import ClientSide
from cli.workflows import workflow_of
from producers import Client
from producers.build_query import QuestionArgs, build_record
from schemas.answer import Answer, PartialAnswer
from schemas.codec import decode, decode_query
from schemas.query import Generation, Query
from schemas.record import well_formed
from schemas.topics import QUERY_TOPICS

PUBLISHED_AT_ONCE = 100
"""Questions whose ids are printed together, once the brokers have them."""
ASKED_IN_THE_SAME_WAY = ("top_k", "nprobe", "workflow")
TopKOption = typer.Option(None, "--top-k", min=1, max=100, help="Passages to find.")
NprobeOption = typer.Option(None, "--nprobe", min=1, help="Clusters to search.")
PriorityOption = typer.Option(0, "--priority", min=-1_000, max=1_000, help="Lower is sooner.")
WorkflowOption = typer.Option(
    None,
    "--workflow",
    metavar="NAME|FILE.json",
    help="A program of `carpool workflows`, or a graph: several searches and generations.",
)


@spread
def ask(
    question: str = typer.Argument(help="The question, in quotes."),
    top_k: int | None = TopKOption,
    nprobe: int | None = NprobeOption,
    max_tokens: int | None = typer.Option(
        None, "--max-tokens", min=1, help="Most tokens of the answer."
    ),
    priority: int = PriorityOption,
    extractive: bool = typer.Option(
        False,
        "--extractive",
        help="Answer with a sentence of a passage, without the language model.",
    ),
    workflow: str | None = WorkflowOption,
    timeout: float | None = typer.Option(
        None,
        "--timeout",
        metavar="SECONDS",
        help="How long to wait; also the deadline. Default: client.answer_timeout_ms.",
    ),
    as_json: JsonOption = False,
    *,
    beside: Beside,
) -> None:
    """Ask a question and wait for its answer, which is shown as it is written.

    Finds a running `carpool up` of this folder. Exit code 1: there is no answer; the output says
    why. --json prints the answer record of rag.answers.v1. Each step of a workflow is shown on
    standard error when it has finished.

    \b
    Examples:
      carpool ask "When was the Eiffel Tower built?"
      carpool ask "Who wrote Moby-Dick?" --top-k 3 --timeout 20 --json
      carpool ask "Who wrote Moby-Dick?" --extractive
      carpool ask "Who wrote Moby-Dick?" --bootstrap kafka:9092
      carpool ask --workflow multistep "Is the author of Moby-Dick older than that of Emma?"
    """
    settings = beside.settings()
    arguments: QuestionArgs = {
        "top_k": top_k,
        "nprobe": nprobe,
        "priority": priority,
        "generation": Generation(max_tokens=max_tokens, extractive=extractive)
        if max_tokens is not None or extractive
        else None,
        "workflow": workflow_of(workflow),
    }
    console = output()
    streams = console.is_terminal and not as_json
    if as_json or not (streams or workflow):
        answer = asyncio.run(_ask(settings, question, timeout, arguments))
    else:
        shown_on = console if streams else None
        answer = asyncio.run(_ask_and_show(settings, question, timeout, arguments, shown_on))
    if as_json:
        print_json(answer)
    else:
        is_shown = streams and answer.status in ANSWERED
        shown = evidence_lines(answer) if is_shown else [answer_text(answer)]
        for part in (*shown, timing_line(answer)):
            console.print(part, soft_wrap=True)
    if answer.status not in ANSWERED:
        raise typer.Exit(FAILED)


async def _ask(
    settings: ClientSide, question: str, timeout_s: float | None, arguments: QuestionArgs
) -> Answer:
    """Returns the terminal answer."""
    async with Client(kafka=settings.kafka, settings=settings.client) as client:
        return await client.ask(question, timeout_s=timeout_s, **arguments)


async def _ask_and_show(
    settings: ClientSide,
    question: str,
    timeout_s: float | None,
    arguments: QuestionArgs,
    console: Console | None,
) -> Answer:
    """Returns the terminal answer. Its steps are printed when they have finished.

    With a console, its text is printed while it arrives.
    """
    async with Client(kafka=settings.kafka, settings=settings.client) as client:
        shown, generation_id, steps = "", None, set[int]()
        async with aclosing(
            client.ask_stream(question, timeout_s=timeout_s, **arguments)
        ) as events:
            async for event in events:
                if isinstance(event, PartialAnswer) and event.step is not None:
                    steps.add(event.seq)
                    people().print(step_line(event.step))
                elif isinstance(event, PartialAnswer) and console is not None:
                    if generation_id not in (None, event.generation_id):
                        console.print("\n(begun again)", style="dim")
                        shown = ""
                    generation_id = event.generation_id
                    shown += event.text
                    console.print(Text(event.text), end="", soft_wrap=True)
                elif isinstance(event, Answer):
                    if console is not None:
                        console.print(text_after(shown, event), soft_wrap=True)
                    for seq, step in enumerate(event.steps):
                        if seq not in steps:  # it was not told: such pieces may be lost
                            people().print(step_line(step))
                    return event
    raise AssertionError("a stream of events ends with an answer or an error")


@spread
def publish(
    question: str = typer.Argument(
        help="The question, in quotes; - reads one a line from standard input."
    ),
    query_id: str | None = typer.Option(None, "--id", help="Its id. Default: a new UUID."),
    top_k: int | None = TopKOption,
    nprobe: int | None = NprobeOption,
    priority: int = PriorityOption,
    batch: bool = typer.Option(
        False,
        "--batch",
        help="Class batch: interactive questions go first; --priority is not used.",
    ),
    workflow: str | None = WorkflowOption,
    deadline: float | None = typer.Option(
        None,
        "--deadline",
        metavar="SECONDS",
        help="Seconds after which the answer is no longer useful.",
    ),
    once: bool = typer.Option(
        False,
        "--once",
        help="Publish no question that its topic has already (for 7 days) with the same --top-k, "
        "--nprobe and --workflow, but print the id that it has. Equal lines are one question. "
        "Needs the right to read rag.queries.v1 and rag.queries.batch.v1.",
    ),
    as_json: JsonOption = False,
    *,
    beside: Beside,
) -> None:
    """Publish a question without waiting for its answer; prints its id once the brokers have it.

    The answer is written to rag.answers.v1 with the id as its key. A line that cannot be published
    (not UTF-8, too long) is skipped and named; the exit code is then 1. After an interruption the
    same command with --once publishes the rest, and nothing twice.

    \b
    Examples:
      carpool publish "When was the Eiffel Tower built?"
      cat questions.txt | carpool publish - --batch --once
      cat questions.txt | carpool publish - --batch --workflow multistep
    """
    settings = beside.settings()
    lines = [(1, question)]
    if question == "-":
        read = list(sys.stdin.buffer) if sys.stdin else []  # None: it is closed
        refuse_foreign(Path("FILE"), b"".join(read[:1]))
        texts = (line.decode("utf-8-sig", "surrogateescape").strip() for line in read)
        lines = [(number, text) for number, text in enumerate(texts, 1) if text]
    if query_id is not None and len(lines) != 1:
        raise ConfigError(f"--id names one question, and there are {len(lines)}")
    arguments: QuestionArgs = {
        "query_id": query_id,
        "top_k": top_k,
        "nprobe": nprobe,
        "priority": "batch" if batch else priority,
        "workflow": workflow_of(workflow),
    }
    # What no line can have, such as a bad graph, is refused once and not for each line.
    record = build_record("a line", now_us=0, **arguments)
    like, known = decode(Query, record.value, record.headers), {}
    if once:
        unique = {text: number for number, text in lines}
        lines = [(number, text) for text, number in unique.items()]
        known = _published(settings, unique, like)
    if asyncio.run(_publish(settings, lines, known, deadline, arguments, as_json=as_json)):
        raise typer.Exit(FAILED)


def _published(settings: ClientSide, texts: Collection[str], like: Query) -> dict[str, str]:
    """Returns the ids, by text, of the questions that their topics have already. Blocks."""
    known: dict[str, str] = {}
    for topic in QUERY_TOPICS:
        for message in read_topic(settings.kafka, SystemClock(), topic, name="publish"):
            with suppress(RecordError):
                query = decode_query(message.value, message.headers, message.source)
                if query.text in texts and all(
                    getattr(query, name) == getattr(like, name) for name in ASKED_IN_THE_SAME_WAY
                ):
                    known.setdefault(query.text or "", query.query_id)
    return known


async def _publish(
    settings: ClientSide,
    lines: list[tuple[int, str]],
    known: Mapping[str, str],
    deadline_s: float | None,
    arguments: QuestionArgs,
    *,
    as_json: bool,
) -> bool:
    """Publishes the lines that have no known id, and prints ids; returns whether one was bad."""

    async def id_of(text: str) -> str:
        if well_formed(text) != text:
            raise RecordError("invalid_utf8", "it is not UTF-8")
        return known.get(text) or await client.publish(text, deadline_s=deadline_s, **arguments)

    is_one_bad = False
    async with Client(kafka=settings.kafka, settings=settings.client) as client:
        for first in range(0, len(lines), PUBLISHED_AT_ONCE):
            some = lines[first : first + PUBLISHED_AT_ONCE]
            ids = await asyncio.gather(*(id_of(text) for _, text in some), return_exceptions=True)
            errors = []
            for (number, text), found in zip(some, ids, strict=True):
                if isinstance(found, RecordError) and len(lines) > 1:
                    people().print(f"line {number} is skipped: {found}", style="yellow")
                    is_one_bad = True
                elif isinstance(found, BaseException):
                    errors.append(found)
                elif as_json:
                    print_json_line({"query_id": found, "text": text})
                else:
                    print_plain(found)
            if errors:
                raise errors[0]
    return is_one_bad


@spread
def cancel(
    query_ids: list[str] = typer.Argument(
        metavar="QUERY_ID...", help="Ids of questions, as `carpool publish` prints them."
    ),
    as_json: JsonOption = False,
    *,
    beside: Beside,
) -> None:
    """Withdraw questions: each ends as `cancelled` and frees its slot at the LLM server.

    Prints each id once the brokers have its cancel (rag.cancels.v1). A question that has its answer
    keeps it. A cancel withdraws the questions that were published with the id before it; a question
    that is published later is answered. A cancel of an unused id has no effect.

    \b
    Examples:
      carpool cancel 4f1c
      carpool cancel q-1 q-2 q-3 --bootstrap kafka:9092
    """
    asyncio.run(_cancel(beside.settings(), query_ids))
    for query_id in query_ids:
        if as_json:
            print_json_line({"query_id": query_id})
        else:
            print_plain(query_id)


async def _cancel(settings: ClientSide, query_ids: list[str]) -> None:
    async with Client(kafka=settings.kafka, settings=settings.client) as client:
        await asyncio.gather(*(client.cancel(query_id) for query_id in query_ids))
