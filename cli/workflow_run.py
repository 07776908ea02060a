"""Runs a program of a workflow on a real index and a real model, in this process: no Kafka."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
from rich.console import Console
from rich.text import Text

from carpool.errors import CarpoolError, ConfigError
from carpool.kafka.records import Message
from carpool.loop.stage import Unit
from carpool.workflow.program import Program
from carpool.workflow.steps import AnswerStep, Generate, Retrieve, Step, WorkflowError
from carpool.workflow.workflows import Workflows, with_results
from cli.answers import evidence_lines, quoted
from cli.settings import CarpoolSettings
from generator.answers import answered, written_before
from generator.llm.openai_api import OpenAiLlm
from generator.llm.protocol import LlmRefusal, PromptRefused
from generator.outcomes import step_result
from generator.plan.next_round import as_asked
from generator.prompts import PreparedPrompt, load_templates, prepare_prompt
from generator.query_in_progress import Generated, QueryInProgress, QueryProgress
from generator.stream_answer import stream_answer
from generator.warmer import Warmed
from schemas.answer import STEP_CHARS_MAX, Answer, StepDone
from schemas.errors import RecordError
from schemas.query import Query
from schemas.record import Record, Source
from schemas.retrieval import Retrieval
from schemas.topics import QUERIES
from schemas.workflow import StepResult
from searcher.local import LocalSearcher

SavedStep = StepResult | StepDone


class RunStep(Record, frozen=True, kw_only=True):
    """A step of a run. `system` and `user`: its prompt, with `passages`, ids by their numbers.

    There is no prompt of a search, and of a text of the saved run.
    """

    result: StepResult
    system: str | None = None
    user: str | None = None
    passages: dict[int, str] = msgspec.field(default_factory=dict)


class WorkflowRun(Record, frozen=True, kw_only=True):
    """A whole run. The last of its `steps` is the answer, unless an earlier one wrote it."""

    program: str
    question: str
    steps: tuple[RunStep, ...]
    answer: Answer


def read_saved(file: Path) -> Sequence[SavedStep]:
    """Returns the steps of a saved run, or of an answer. Raises `ConfigError`."""
    try:
        content = file.read_bytes()
        with suppress(msgspec.ValidationError):
            return [step.result for step in msgspec.json.decode(content, type=WorkflowRun).steps]
        return msgspec.json.decode(content, type=Answer).steps
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError(
            f"{file} is no saved run (`carpool workflows run --json`) and no answer of "
            f"rag.answers.v1: {error}"
        ) from None


class WorkflowRunner:
    """Runs one program, and shows each step on `console` as it happens.

    The results of the steps before number `first` are those of `saved`.
    """

    def __init__(
        self,
        program: Program,
        settings: CarpoolSettings,
        searcher: LocalSearcher,
        console: Console,
        *,
        first: int,
        saved: Sequence[SavedStep],
    ) -> None:
        limits, llm = settings.workflow, settings.llm
        self._settings, self._searcher, self._console = settings, searcher, console
        self._nprobe = min(settings.grouper.nprobe, searcher.manifest.nlist) or None
        self._engine = OpenAiLlm(msgspec.structs.replace(llm, base_url=llm.base_urls()[0]))
        self._templates = load_templates(settings.generator)
        self._workflows = Workflows(
            programs={(program.name, program.version): program},
            steps_max=limits.steps_max,
            tokens_max=limits.tokens_max,
        )
        self._source = Source(  # as of a question that is published now
            topic=QUERIES.name, partition=0, offset=0, timestamp_ms=_now_us() // 1_000
        )
        self._first, self._saved_steps = first, saved
        self._steps: list[RunStep] = []

    async def run(self, query: Query) -> WorkflowRun:
        """Runs it. Blocks to search.

        Raises `ConfigError` where a saved step is another one, else `CarpoolError` that names the
        step.
        """
        try:
            await self._engine.check()
            query = self._workflows.begin(query)
            while (end := (asked := self._workflows.asked(query)).answer) is None:
                query = with_results(query, [await self._step(one, query) for one in asked.steps])
            answer = await self._answer(end, query)
        except (LlmRefusal, PromptRefused) as error:
            whose = f"the LLM server at {self._engine.address}"
            raise CarpoolError(f"step {len(self._steps) + 1}: {whose}: {error}") from None
        except RecordError as error:
            raise CarpoolError(f"step {len(self._steps) + 1}: {error}") from None
        except WorkflowError as error:
            raise CarpoolError(str(error)) from None
        finally:
            await self._engine.close()
        assert query.journal is not None, "it was begun"
        return WorkflowRun(
            program=f"{query.journal.program}@{query.journal.version}",
            question=query.journal.root.text or "",
            steps=tuple(self._steps),
            answer=answer,
        )

    async def _step(self, step: Step, query: Query) -> StepResult:
        number, is_search = len(self._steps) + 1, isinstance(step, Retrieve)
        is_new = number >= self._first
        what = f"{number:>3} {'search' if is_search else 'write'}{'' if is_new else ', as saved'}"
        self._console.print(what, style="bold cyan")
        if isinstance(step, Generate) and is_new:
            await self._write(step, query)
            result = self._steps[-1].result
            self._note(f"{result.output_tokens} tokens, {result.took_ms / 1_000:.2f} s")
            return result
        result = self._search(step) if isinstance(step, Retrieve) and is_new else self._saved(step)
        self._steps.append(RunStep(result=result))
        self._console.print(result.text, soft_wrap=True)
        for place, hit in enumerate(result.hits or (), start=1):
            self._note(f"{place}  {hit.doc_id}  {hit.score:.3f}  {hit.title}  {quoted(hit.text)}")
        return result

    def _saved(self, step: Step) -> StepResult:
        """Returns the saved result of a step. Raises `ConfigError` where it is of another step."""
        number = len(self._steps) + 1
        if number > len(self._saved_steps):
            raise ConfigError(
                f"--from {self._first}: the saved run has {len(self._saved_steps)} steps"
            )
        before = self._saved_steps[number - 1]
        if not _is_of(before, step):
            raise ConfigError(
                f"step {number}: the program asks for another step than the saved one with the "
                f"text {quoted(before.text)}; continue with --from {number}"
            )
        if isinstance(before, StepResult):
            return before
        if isinstance(step, Retrieve):  # an answer has no texts of passages
            result = self._search(step)
            if tuple(hit.doc_id for hit in result.hits or ()) != before.doc_ids:
                raise ConfigError(
                    f"step {number}: its search finds other passages than the answer says: "
                    f"{', '.join(before.doc_ids)}; is --index the index of that answer?"
                )
            return result
        if len(before.text) >= STEP_CHARS_MAX:
            raise ConfigError(f"step {number}: the answer has not the whole text; begin with it")
        return StepResult(digest=step.digest(), text=before.text, output_tokens=before.tokens)

    def _search(self, step: Retrieve) -> StepResult:
        began = time.perf_counter()
        top_k = step.top_k or self._settings.searcher.top_k_default
        (found,) = self._searcher.search([step.text], top_k=top_k, nprobe=self._nprobe)
        return StepResult(
            digest=step.digest(),
            text=step.text,
            hits=found.hits,
            skipped=found.skipped_clusters,
            took_ms=(time.perf_counter() - began) * 1_000,
        )

    async def _write(self, step: Generate, query: Query) -> tuple[PreparedPrompt, Generated]:
        """Sends a prompt as a generator does; shows it, and the text as it is written.

        The step is added to those of the run.
        """
        retrieval = self._retrieval(step, query)
        prepared = prepare_prompt(retrieval, self._settings.generator, self._templates, step=step)
        request, shown, began = prepared.request, "", time.perf_counter()
        self._console.print(Text(f"{request.system}\n\n{request.user}"), soft_wrap=True)
        if prepared.left_out:
            self._note(f"not in the prompt: {', '.join(prepared.left_out)}", "yellow")
        self._note("the model writes:")

        def show(_id: str, _seq: int, text: str) -> None:
            nonlocal shown
            shown += text
            self._console.print(Text(text), end="", soft_wrap=True)

        generated = await stream_answer(
            self._engine,
            request,
            on_first_token=lambda: None,
            on_text=show,
            on_broken=lambda _: None,
        )
        self._console.print(Text(generated.written.answer.removeprefix(shown)), soft_wrap=True)
        took_us = round((time.perf_counter() - began) * 1_000_000)
        passages = {number: hit.doc_id for number, hit in prepared.given.items()}
        result = step_result(step, prepared, generated, took_us)
        self._steps.append(
            RunStep(result=result, system=request.system, user=request.user, passages=passages)
        )
        return prepared, generated

    async def _answer(self, end: AnswerStep, query: Query) -> Answer:
        asked = self._retrieval(end, query)
        progress = QueryProgress(arrived_us=_now_us(), attempts=1)
        self._console.print("    answer", style="bold cyan")
        if end.is_written:
            answer = written_before(asked, end.written, progress)
            self._console.print(answer.answer or "", soft_wrap=True)
        else:
            prepared, generated = await self._write(end, query)
            message = Message(source=self._source, key=None, value=None, headers=(), received_us=0)
            unit = Unit(id=0, record=asked, message=message)
            work = QueryInProgress(id=0, unit=unit, prepared=prepared, progress=progress)
            answer = answered(work, generated, _now_us(), Warmed())
        for line in evidence_lines(answer):
            self._console.print(line, soft_wrap=True)
        return answer

    def _retrieval(self, step: Generate, query: Query) -> Retrieval:
        manifest = self._searcher.manifest
        last = Retrieval(
            query=query,
            source=self._source,
            revision=1,
            is_final=True,
            index_version=manifest.index_version,
            embedding_model=manifest.embedding_model,
            hits=(),
            skipped_clusters=(),
        )
        return as_asked(last, step)

    def _note(self, text: str, style: str = "dim") -> None:
        self._console.print(f"    {text}", style=style, soft_wrap=True)


def _is_of(saved: SavedStep, step: Step) -> bool:
    """Returns whether a saved step is this one; of an answer's steps kind and text are known."""
    if isinstance(saved, StepResult):
        return saved.digest == step.digest()
    if isinstance(step, Retrieve):
        return (saved.kind, saved.text) == ("retrieve", step.text[:STEP_CHARS_MAX])
    return saved.kind == "generate"


def _now_us() -> int:
    return time.time_ns() // 1_000
