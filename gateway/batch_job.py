"""Runs a batch of `/v1/batches` on a thread: file in, answers, files out."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from carpool.clock import Clock
from carpool.errors import ConfigError, RecordError
from carpool.kafka.settings import KafkaSettings
from gateway.files import Files, LostFile
from gateway.ledger import Ledger
from gateway.plan.batches import output_line, unasked_line, why_it_ends
from gateway.plan.objects import AddressOf
from producers.batch.costs import Costs, Prices
from producers.batch.input_file import InputFile, open_input
from producers.batch.output_file import OutputFile, write_ordered
from producers.batch.plan import BatchPlan
from producers.batch.run import BatchRun
from producers.settings import ClientSettings
from schemas.batch import AnswerLine, Batch, BatchRequest, HowEnded

IN_FLIGHT = 1_000
LINES_MAX = 50_000
"""As OpenAI's: it bounds the disk that a batch takes here."""

_decoder = msgspec.json.Decoder(AnswerLine)


@dataclass(frozen=True, kw_only=True)
class BatchParts:
    """What all jobs have.

    `spent` gets what answers of an owner cost, and returns whether it may ask more. Thread-safe.
    """

    kafka: KafkaSettings
    client: ClientSettings
    clock: Clock
    ledger: Ledger
    files: Files
    address_of: AddressOf
    spent: Callable[[str, float], bool]


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a job ended. `answers`, `errors`: files with its lines; None: it has no such lines."""

    request: BatchRequest
    answers: Path | None = None
    errors: Path | None = None


class BatchJob:
    """A batch at work. `work` blocks; the others are of any thread."""

    def __init__(self, parts: BatchParts, batch: Batch, request: BatchRequest) -> None:
        self._parts = parts
        self.owner = request.owner
        self._batch, self._request = batch, request
        self._costs = Costs(Prices(input=parts.client.price_in, output=parts.client.price_out))
        self._told_cost = 0.0
        self._run: BatchRun | None = None
        self._is_stopped = False
        self._why: HowEnded | None = None
        self._folder: TemporaryDirectory[str] | None = None
        self._input = Path()

    def stop(self) -> None:
        """Ends the work soon; another gateway, or this one later, goes on."""
        self._is_stopped = True
        if self._run is not None:
            self._run.stop()

    def close(self) -> None:
        """Removes the files of the work."""
        if self._folder is not None:
            self._folder.cleanup()

    def work(self) -> Ended | None:
        """Asks what is open until the batch has ended; None: it goes on another time. Blocks.

        Raises `RetryableError`, and `OSError` where the disk is full.
        """
        self._folder = TemporaryDirectory(prefix="carpool-batch-")
        self._input = Path(self._folder.name) / "input"
        try:
            return self._work(Path(self._folder.name))
        except (ConfigError, RecordError, LostFile) as error:
            why = str(error).replace(str(self._input), self._request.input_file_id)
            return Ended(
                request=msgspec.structs.replace(self._request, ended="failed", failure=why)
            )

    def _work(self, folder: Path) -> Ended | None:
        with ExitStack() as stack:
            source = stack.enter_context(closing(self._checked(folder)))
            output = stack.enter_context(closing(OutputFile(folder / "output")))
            plan = BatchPlan(source.facts.lines, IN_FLIGHT, (*source.refused, *source.blank))
            parts = (self._parts.kafka, self._parts.client, self._parts.clock)
            run = BatchRun(*parts, source, output, plan, self._costs, self._follow)
            self._run = stack.enter_context(closing(run))
            self._follow(run)
            ended = run.run(takes_over=True)
            if ended not in ("done", "cancelled"):
                return None
            write_ordered([folder / "refused", output.path], folder / "all", source.facts.lines)
            return self._sorted(
                folder, source, "completed" if ended == "done" else self._why or "cancelled"
            )

    def _checked(self, folder: Path) -> InputFile:
        """Returns the input, all lines of which were checked. Raises `ConfigError`."""
        name = self._request.input_file_id
        file = self._parts.ledger.files.get(name)
        if file is None:
            raise LostFile(f"there is no file {name} any more")
        with self._input.open("wb") as copy:
            for piece in self._parts.files.read(file):
                copy.write(piece)
        with (folder / "refused").open("wb") as refused:
            source = open_input(self._input, self._batch.options, refused, lambda _: None)
        if source.kind != "OpenAI's batch lines":
            source.close()
            raise ConfigError(f"{name} has {source.kind}, and not OpenAI's batch lines")
        if (lines := source.facts.lines) > LINES_MAX:
            source.close()
            raise ConfigError(f"{name} has {lines:,} lines; a batch has at most {LINES_MAX:,}")
        facts = msgspec.structs.replace(source.facts, name=file.name)
        return replace(source, batch_id=self._batch.batch_id, facts=facts)

    def _follow(self, run: BatchRun) -> None:
        """Tells what the run has cost, and ends it when its batch is cancelled or too old."""
        news = 0.0 if run.is_catching_up else self._costs.cost - self._told_cost
        self._told_cost = self._costs.cost
        may_ask = self._parts.spent(self.owner, news)
        known = self._parts.ledger.batches.get(self._batch.batch_id, self._batch)
        request, now_ms = known.request or self._request, self._parts.clock.now_us() // 1_000
        self._why = self._why or why_it_ends(known, request, now_ms)
        if self._is_stopped or request.ended:
            run.stop()
        elif self._why is not None:
            run.cancel()
        elif not may_ask:
            run.stop()

    def _sorted(self, folder: Path, source: InputFile, ended: HowEnded) -> Ended:
        """Writes the files of answers and of errors, in the order of the input."""
        answers, errors = folder / "answers", folder / "errors"
        with (
            (folder / "all").open("rb") as lines,
            answers.open("wb") as good,
            errors.open("wb") as bad,
        ):
            blank, left = {*source.blank}, iter(range(1, source.facts.lines + 1))

            def unasked(end: int) -> None:
                """Writes the lines before this one that have no answer."""
                for number in takewhile(end.__ne__, left):
                    if number not in blank:
                        asked = source.line(number)
                        shown = unasked_line(number, asked, self._batch, ended)
                        bad.write(msgspec.json.encode(shown) + b"\n")

            for line in map(_decoder.decode, lines):
                unasked(line.line)
                asked = None if line.status == "refused" else source.line(line.line)
                is_good, shown = output_line(line, asked, self._batch, self._parts.address_of)
                (good if is_good else bad).write(msgspec.json.encode(shown) + b"\n")
            unasked(0)
        request = msgspec.structs.replace(self._request, ended=ended)
        found = (path if path.stat().st_size else None for path in (answers, errors))
        return Ended(request=request, answers=next(found), errors=next(found))
