"""`carpool ask`, `publish` and `cancel`: a question from the command line."""

from __future__ import annotations

import asyncio
import sys
from contextlib import aclosing

import typer
from rich.console import Console
from rich.text import Text

from carpool.errors import ConfigError
from cli.answers import (
    ANSWERED,
    answer_text,
    citation_lines,
    quote_lines,
    text_after,
    timing_line,
)
from cli.console import output, print_json, print_json_line, print_plain
from cli.exit_codes import FAILED
from cli.options import BesideOption, ConfigOption, JsonOption, SetOption, client_side
from cli.settings import ClientSide
from producers import Client
from producers.build_query import QuestionArgs
from schemas.answer import Answer, PartialAnswer
from schemas.query import Generation

TopKOption = typer.Option(None, "--top-k", min=1, max=100, help="Passages to find.")
NprobeOption = typer.Option(None, "--nprobe", min=1, help="Clusters to search.")
PriorityOption = typer.Option(0, "--priority", min=-1_000, max=1_000, help="Lower is sooner.")


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
    timeout: float | None = typer.Option(
        None,
        "--timeout",
        metavar="SECONDS",
        help="How long to wait; also the deadline. Default: client.answer_timeout_ms.",
    ),
    bootstrap: BesideOption = None,
    as_json: JsonOption = False,
    config: ConfigOption = None,
    assignments: SetOption = None,
) -> None:
    """Ask a question and wait for its answer, which is shown as it is written.

    Finds a running `carpool up` of this folder. Exit code 1: there is no answer; the output says
    why. --json prints the answer record of rag.answers.v1.

    \b
    Examples:
      carpool ask "When was the Eiffel Tower built?"
      carpool ask "Who wrote Moby-Dick?" --top-k 3 --timeout 20 --json
      carpool ask "Who wrote Moby-Dick?" --extractive
      carpool ask "Who wrote Moby-Dick?" --bootstrap kafka:9092
    """
    settings = client_side(bootstrap, config, assignments)
    arguments: QuestionArgs = {
        "top_k": top_k,
        "nprobe": nprobe,
        "priority": priority,
        "generation": Generation(max_tokens=max_tokens, extractive=extractive)
        if max_tokens is not None or extractive
        else None,
    }
    console = output()
    streams = console.is_terminal and not as_json
    answer = asyncio.run(_ask(settings, question, timeout, arguments, console if streams else None))
    if as_json:
        print_json(answer)
    elif not streams or answer.status not in ANSWERED:
        console.print(answer_text(answer), soft_wrap=True)
        console.print(timing_line(answer), soft_wrap=True)
    else:
        for line in (*quote_lines(answer), *citation_lines(answer)):
            console.print(line, soft_wrap=True)
        console.print(timing_line(answer), soft_wrap=True)
    if answer.status not in ANSWERED:
        raise typer.Exit(FAILED)


async def _ask(
    settings: ClientSide,
    question: str,
    timeout_s: float | None,
    arguments: QuestionArgs,
    console: Console | None,
) -> Answer:
    """Returns the terminal answer. With a console, its text is printed while it arrives."""
    async with Client(kafka=settings.kafka, settings=settings.client) as client:
        if console is None:
            return await client.ask(question, timeout_s=timeout_s, **arguments)
        shown, generation_id = "", None
        async with aclosing(
            client.ask_stream(question, timeout_s=timeout_s, **arguments)
        ) as events:
            async for event in events:
                if isinstance(event, PartialAnswer):
                    if generation_id not in (None, event.generation_id):
                        console.print("\n(begun again)", style="dim")
                        shown = ""
                    generation_id = event.generation_id
                    shown += event.text
                    console.print(Text(event.text), end="", soft_wrap=True)
                else:
                    console.print(text_after(shown, event), soft_wrap=True)
                    return event
    raise AssertionError("a stream of events ends with an answer or an error")


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
    deadline: float | None = typer.Option(
        None,
        "--deadline",
        metavar="SECONDS",
        help="Seconds after which the answer is no longer useful.",
    ),
    bootstrap: BesideOption = None,
    as_json: JsonOption = False,
    config: ConfigOption = None,
    assignments: SetOption = None,
) -> None:
    """Publish a question without waiting for its answer; prints its id once the brokers have it.

    The answer is written to rag.answers.v1 with the id as its key.

    \b
    Examples:
      carpool publish "When was the Eiffel Tower built?"
      cat questions.txt | carpool publish - --batch
    """
    settings = client_side(bootstrap, config, assignments)
    texts = [line.strip() for line in sys.stdin if line.strip()] if question == "-" else [question]
    if query_id is not None and len(texts) != 1:
        raise ConfigError(f"--id names one question, and there are {len(texts)}")
    arguments: QuestionArgs = {"top_k": top_k, "nprobe": nprobe, "query_id": query_id}
    arguments["priority"] = "batch" if batch else priority
    ids = asyncio.run(_publish(settings, texts, deadline, arguments))
    for text, published in zip(texts, ids, strict=True):
        if as_json:
            print_json_line({"query_id": published, "text": text})
        else:
            print_plain(published)


async def _publish(
    settings: ClientSide, texts: list[str], deadline_s: float | None, arguments: QuestionArgs
) -> list[str]:
    async with Client(kafka=settings.kafka, settings=settings.client) as client:
        ids = [client.publish_nowait(text, deadline_s=deadline_s, **arguments) for text in texts]
        await client.flush(settings.client.publish_timeout_ms / 1_000)
    return ids


def cancel(
    query_ids: list[str] = typer.Argument(
        metavar="QUERY_ID...", help="Ids of questions, as `carpool publish` prints them."
    ),
    bootstrap: BesideOption = None,
    as_json: JsonOption = False,
    config: ConfigOption = None,
    assignments: SetOption = None,
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
    asyncio.run(_cancel(client_side(bootstrap, config, assignments), query_ids))
    for query_id in query_ids:
        if as_json:
            print_json_line({"query_id": query_id})
        else:
            print_plain(query_id)


async def _cancel(settings: ClientSide, query_ids: list[str]) -> None:
    async with Client(kafka=settings.kafka, settings=settings.client) as client:
        await asyncio.gather(*(client.cancel(query_id) for query_id in query_ids))
