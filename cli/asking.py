"""`carpool ask`, `publish` and `cancel`: a question from the command line."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from carpool.errors import ConfigError, RecordError
from carpool.foreign_files import refuse_foreign
from cli.answers import ANSWERED, answer_text, evidence_lines, step_line, text_after, timing_line
from cli.console import output, people, print_json, print_json_line, print_plain
from cli.exit_codes import FAILED
from cli.options import ClientArgs, JsonOption, spread
from cli.settings import ClientSide
from cli.workflows import workflow_of
from producers import Client
from producers.build_query import QuestionArgs, build_record
from schemas.answer import Answer, PartialAnswer
from schemas.query import Generation
from schemas.record import well_formed

PUBLISHED_AT_ONCE = 100
"""Questions whose ids are printed together, once the brokers have them."""
BATCH = "Class batch: interactive questions go first; --priority is not used."


@dataclass(frozen=True, kw_only=True)
class QuestionOptions:
    """How a question is searched and answered."""

    top_k: Annotated[int | None, typer.Option(min=1, max=100, help="Passages to find.")] = None
    nprobe: Annotated[int | None, typer.Option(min=1, help="Clusters to search.")] = None
    priority: Annotated[int, typer.Option(min=-1_000, max=1_000, help="Lower is sooner.")] = 0
    workflow: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE.json",
            help="A program of `carpool workflows`, or a graph: several searches and generations.",
        ),
    ] = None

    def arguments(self) -> QuestionArgs:
        """Returns them as the client takes them. Raises `ConfigError` for a graph that is none."""
        return {
            "top_k": self.top_k,
            "nprobe": self.nprobe,
            "priority": self.priority,
            "workflow": workflow_of(self.workflow),
        }


@spread
def ask(
    question: Annotated[str, typer.Argument(help="The question, in quotes.")],
    options: QuestionOptions,
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="Most tokens of the answer.")
    ] = None,
    extractive: Annotated[
        bool,
        typer.Option(
            "--extractive", help="Answer with a sentence of a passage, without the language model."
        ),
    ] = False,
    timeout: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            help="How long to wait; also the deadline. Default: client.answer_timeout_ms.",
        ),
    ] = None,
    as_json: JsonOption = False,
    *,
    sources: ClientArgs,
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
    arguments = options.arguments()
    if max_tokens is not None or extractive:
        arguments["generation"] = Generation(max_tokens=max_tokens, extractive=extractive)
    asked = _ask(sources.settings(), question, timeout, arguments, as_json=as_json)
    if asyncio.run(asked).status not in ANSWERED:
        raise typer.Exit(FAILED)


async def _ask(
    settings: ClientSide,
    question: str,
    timeout_s: float | None,
    arguments: QuestionArgs,
    *,
    as_json: bool,
) -> Answer:
    """Prints the answer and returns it.

    On a terminal its text is printed while it arrives. Its steps are printed when they have
    finished.
    """
    console = output()
    streams = console.is_terminal and not as_json
    async with Client(kafka=settings.kafka, settings=settings.client) as client:
        if streams or (arguments.get("workflow") and not as_json):
            stream = client.ask_stream(question, timeout_s=timeout_s, **arguments)
            async with aclosing(stream) as events:
                answer = await _shown(events, console if streams else None)
        else:
            answer = await client.ask(question, timeout_s=timeout_s, **arguments)
    if as_json:
        print_json(answer)
        return answer
    is_shown = streams and answer.status in ANSWERED
    shown = evidence_lines(answer) if is_shown else [answer_text(answer)]
    for part in (*shown, timing_line(answer)):
        console.print(part, soft_wrap=True)
    return answer


async def _shown(events: AsyncIterator[PartialAnswer | Answer], console: Console | None) -> Answer:
    """Returns the terminal answer. Prints its steps, and its text where there is a console."""
    shown, generation_id, steps = "", None, set[int]()
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
    question: Annotated[
        str, typer.Argument(help="The question, in quotes; - reads one a line from standard input.")
    ],
    options: QuestionOptions,
    query_id: Annotated[
        str | None, typer.Option("--id", help="Its id. Default: a new UUID.")
    ] = None,
    batch: Annotated[bool, typer.Option("--batch", help=BATCH)] = False,
    deadline: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="Seconds after which the answer is no longer useful."),
    ] = None,
    as_json: JsonOption = False,
    *,
    sources: ClientArgs,
) -> None:
    """Publish a question without waiting for its answer; prints its id once the brokers have it.

    The answer is written to rag.answers.v1 with the id as its key. A line that cannot be published
    (not UTF-8, too long) is skipped and named; the exit code is then 1. `carpool answers` collects
    the answers by these ids. For a file of questions, `carpool batch run` does both.

    \b
    Examples:
      carpool publish "When was the Eiffel Tower built?"
      cat questions.txt | carpool publish - --batch --workflow multistep > ids.txt
    """
    settings = sources.settings()
    lines = _read_lines() if question == "-" else [(1, question)]
    if query_id is not None and len(lines) != 1:
        raise ConfigError(f"--id names one question, and there are {len(lines)}")
    arguments: QuestionArgs = {**options.arguments(), "query_id": query_id}
    if batch:
        arguments["priority"] = "batch"
    # What no line can have, such as a bad graph, is refused once and not for each line.
    build_record("a line", now_us=0, **arguments)
    if asyncio.run(_publish(settings, lines, deadline, arguments, as_json=as_json)):
        raise typer.Exit(FAILED)


def _read_lines() -> list[tuple[int, str]]:
    """Returns the lines of standard input that have a text, with their numbers."""
    read = list(sys.stdin.buffer) if sys.stdin else []  # None: it is closed
    refuse_foreign(Path("FILE"), b"".join(read[:1]))
    texts = (line.decode("utf-8-sig", "surrogateescape").strip() for line in read)
    return [(number, text) for number, text in enumerate(texts, 1) if text]


async def _publish(
    settings: ClientSide,
    lines: list[tuple[int, str]],
    deadline_s: float | None,
    arguments: QuestionArgs,
    *,
    as_json: bool,
) -> bool:
    """Publishes the lines that have no known id, and prints ids; returns whether one was bad."""

    async def id_of(text: str) -> str:
        if well_formed(text) != text:
            raise RecordError("invalid_utf8", "it is not UTF-8")
        return await client.publish(text, deadline_s=deadline_s, **arguments)

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
    query_ids: Annotated[
        list[str],
        typer.Argument(
            metavar="QUERY_ID...", help="Ids of questions, as `carpool publish` prints them."
        ),
    ],
    as_json: JsonOption = False,
    *,
    sources: ClientArgs,
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
    asyncio.run(_cancel(sources.settings(), query_ids))
    for query_id in query_ids:
        if as_json:
            print_json_line({"query_id": query_id})
        else:
            print_plain(query_id)


async def _cancel(settings: ClientSide, query_ids: list[str]) -> None:
    async with Client(kafka=settings.kafka, settings=settings.client) as client:
        await asyncio.gather(*(client.cancel(query_id) for query_id in query_ids))
