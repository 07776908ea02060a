"""Asks the questions of `carpool up --demo-questions` through the client."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from carpool.errors import CarpoolError
from carpool.kafka.settings import KafkaSettings
from cli.answers import ANSWERED, answer_text, has_evidence, timing_table
from producers import Client
from producers.settings import ClientSettings
from schemas.answer import Answer


class DemoRun:
    """Asks one question after the other, on a thread of its own."""

    def __init__(
        self,
        kafka: KafkaSettings,
        client: ClientSettings,
        questions: Sequence[str],
        console: Console,
    ) -> None:
        self._kafka = kafka
        self._client = client
        self._questions = questions
        self._console = console
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="carpool-demo", daemon=True)
        self.asked = len(questions)
        self.answers: list[Answer] = []
        self.error: Exception | None = None

    def start(self) -> None:
        """Begins."""
        self._thread.start()

    def stop(self) -> None:
        """Ends after the current question."""
        self._stopping.set()

    def is_over(self) -> bool:
        """Returns whether all questions were asked, or it failed."""
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            asyncio.run(self._ask_all())
        except Exception as error:
            self.error = error

    async def _ask_all(self) -> None:
        async with Client(kafka=self._kafka, settings=self._client) as client:
            for number, question in enumerate(self._questions, start=1):
                if self._stopping.is_set():
                    return
                answer = await client.ask(question)
                self.answers.append(answer)
                self._console.print()
                self._console.print(Text(f"{number}. {question}", style="bold"))
                self._console.print(answer_text(answer))


def conclude(run: DemoRun, console: Console, how_to_ask: str) -> None:
    """Prints times, what the answers have, and how to ask again. Raises the error of the run."""
    if run.answers:
        console.print()
        console.print(timing_table(run.answers))
        console.print(summary(run.answers, run.asked), soft_wrap=True)
    if run.error is not None:
        raise (
            run.error
            if isinstance(run.error, CarpoolError)
            else CarpoolError(f"the demo failed: {run.error!r}")
        )
    console.print(f"Ask another:  {how_to_ask}")


def summary(answers: Sequence[Answer], asked: int) -> str:
    """Returns a line: how many of `asked` questions have an answer that can be checked."""
    checkable = sum(map(has_evidence, answers))
    cut = sum(answer.status == "partial" for answer in answers)
    grounded = [answer for answer in answers if answer.grounded]
    marked = sum(
        any(one.quote and one.by == "model" for one in each.citations) for each in grounded
    )
    quoted = sum(bool(answer.quotes) for answer in answers if answer.status in ANSWERED)
    return (
        f"{checkable} of {asked} answered from passages"
        f"{f' ({cut} cut short)' if cut else ''}. {len(grounded)} have a passage that supports "
        f"them ({marked} by a marker of the model), {quoted} show a quote."
    )
