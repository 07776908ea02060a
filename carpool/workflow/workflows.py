"""What a workflow asks for next, and the queries that are its steps. Pure.

Every function takes the query of a record: the published one, or one with a journal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec
from msgspec.structs import replace

from carpool.workflow.graph import INLINE, program_of
from carpool.workflow.program import NextSteps, Program, Programs, Ran, RunRequest, find
from carpool.workflow.resume import resume
from carpool.workflow.steps import Retrieve, WorkflowError
from schemas.query import Journal, OtherSearch, Query, results_of, root_of
from schemas.workflow import JOURNAL_BYTES_MAX, InlineWorkflow, StepResult

ONE_SHOT = "one_shot"
"""The workflow of a query that names none: one search, one answer, and no journal."""

_encoder = msgspec.json.Encoder()


def is_workflow(query: Query) -> bool:
    """Returns whether a query has more steps than one search and one answer."""
    return query.workflow not in (None, ONE_SHOT) or query.journal is not None


@dataclass(frozen=True, kw_only=True, slots=True)
class Workflows:
    """The programs of a service, and the most steps and tokens that a workflow may take."""

    programs: Programs
    steps_max: int
    tokens_max: int

    def begin(self, query: Query) -> Query:
        """Returns the first query of a workflow, with an empty journal. Raises `WorkflowError`."""
        if query.text is None:
            raise WorkflowError("a workflow needs the question as `text`")
        program = self._program(query, version=None)
        journal = Journal(
            root=query, program=program.name, version=program.version, digest=program.digest
        )
        # The others are in its root.
        return replace(
            query,
            vector=None,
            workflow=None,
            instructions=None,
            messages=(),
            passages=False,
            journal=journal,
        )

    def asked(self, query: Query) -> NextSteps:
        """Returns what a workflow asks for after the rounds of its journal.

        Blocks while a child process runs the program. Raises `WorkflowError`.
        """
        program, request = self._request(query)
        process = program.process
        return _resumed(program, request) if process is None else process.run(request)

    def ask(self, query: Query, then: Callable[[Ran], None], is_wanted: Callable[[], bool]) -> None:
        """Calls `then` with what `asked` returns or raises: now, or on another thread.

        A program in a child process runs later. If it `is_wanted` no more, `then` is not called.
        """
        try:
            program, request = self._request(query)
            if program.process is not None:
                program.process.submit(request, then, is_wanted)
                return
            ran: Ran = _resumed(program, request)
        except WorkflowError as error:
            ran = error
        then(ran)

    def _request(self, query: Query) -> tuple[Program, RunRequest]:
        journal = query.journal
        assert journal is not None, "it was begun"
        program = self._program(journal.root, journal.version)
        if program.digest != journal.digest or program.name != journal.program:
            raise WorkflowError(
                f"{program.label} is not the program that began this workflow: its version was not "
                "raised when it was changed, or services have different programs; ask again",
                "workflow_changed",
            )
        written = sum(result.output_tokens for result in results_of(query))
        if written > self.tokens_max:
            raise WorkflowError(
                f"{program.label}: its steps took {written} tokens, and {self.tokens_max} are "
                "allowed (workflow.tokens_max)",
                "workflow_limit",
            )
        return program, RunRequest(
            name=program.name,
            version=program.version,
            question=journal.root.text or "",
            messages=tuple((each.role, each.text) for each in journal.root.messages),
            rounds=journal.rounds,
            steps_max=self.steps_max,
        )

    def _program(self, root: Query, version: int | None) -> Program:
        named = root.workflow
        if isinstance(named, InlineWorkflow):
            return program_of(named.graph)
        name = named or INLINE
        program = find(self.programs, name, version)
        if program is None:
            known = ", ".join(sorted({one for one, _ in self.programs}))
            what = name if version is None else f"{name}@{version}"
            raise WorkflowError(
                f"there is no workflow {what!r} here; there are: {known} (workflow.modules)",
                "workflow_failed" if version is None else "workflow_changed",
            )
        return program


def _resumed(program: Program, request: RunRequest) -> NextSteps:
    asked, said = request.question, request.messages
    return resume(program, asked, request.rounds, request.steps_max, said)


def with_results(query: Query, results: Sequence[StepResult]) -> Query:
    """Returns a query whose journal has one more round. Raises `WorkflowError` if it is full."""
    assert query.journal is not None, "it was begun"
    rounds = (*query.journal.rounds, tuple(results))
    journal = replace(query.journal, rounds=rounds, other_searches=(), asked=(), began_us=0)
    if (size := len(_encoder.encode(journal))) > JOURNAL_BYTES_MAX:
        raise WorkflowError(
            f"the results of its steps take {size} bytes, and a record has room for "
            f"{JOURNAL_BYTES_MAX}; search with a smaller top_k",
            "workflow_limit",
        )
    return replace(query, journal=journal)


def search_query(query: Query, steps: Sequence[Retrieve], now_us: int) -> Query:
    """Returns the query that searches for these steps."""
    assert query.journal is not None, "it was begun"
    first, *others = steps
    searches = tuple(OtherSearch(text=step.text, top_k=step.top_k) for step in others)
    asked = tuple(step.digest() for step in steps)
    journal = replace(query.journal, other_searches=searches, asked=asked, began_us=now_us)
    return replace(
        query,
        text=first.text,
        vector=None,
        top_k=first.top_k or root_of(query).top_k,
        journal=journal,
    )
