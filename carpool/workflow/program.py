"""Programs: functions that are workflows, each with its name, version and digest. Pure."""

from __future__ import annotations

import ast
import hashlib
import inspect
import re
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from carpool.errors import ConfigError
from carpool.workflow.steps import AnswerStep, Generate, Retrieve, Step, WorkflowError
from schemas.workflow import STEPS_MAX, StepResult

NAME = re.compile(r"[a-z][a-z0-9_-]{0,63}")
OWN = "__program__"
"""The name of every program in its digest."""

Asks: TypeAlias = Step | Sequence[Step]
Run: TypeAlias = Generator[Asks, Any, AnswerStep]
Messages: TypeAlias = Sequence[tuple[str, str]]
"""Role (user or assistant) and text of each message before the question, oldest first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Program:
    """A workflow that can be run. `function` gets the question and returns a generator of steps.

    If it has a second argument, it gets the messages before the question, too.
    `digest` is that of its source (`source_digest`); a workflow goes on only with the digest that
    it began with. `doc` is its docstring. `file` and `source` are None for a graph. It runs in
    `process`, if it has no function.
    """

    name: str
    version: int
    function: Callable[..., Run] | None
    digest: str
    steps_max: int = STEPS_MAX
    doc: str = ""
    file: str | None = None
    source: str | None = None
    process: ProgramProcess | None = None

    @property
    def summary(self) -> str:
        """The first line of the docstring."""
        return self.doc.partition("\n")[0]

    @property
    def label(self) -> str:
        """The program in messages: `name@version`."""
        return f"{self.name}@{self.version}"

    def begun(self, question: str, messages: Messages) -> Run:
        """Returns a new run of the function."""
        assert self.function is not None, "it runs in another process"
        takes = len(inspect.signature(self.function).parameters)
        return self.function(question, messages) if takes > 1 else self.function(question)


@dataclass(frozen=True, kw_only=True, slots=True)
class NextSteps:
    """The next round of a program: steps of one kind, or its answer.

    `digests` are those of the steps. `is_list` says that the program asked for a list, and gets
    one.
    """

    steps: tuple[Retrieve, ...] | tuple[Generate, ...]
    digests: tuple[str, ...]
    is_list: bool = False

    @property
    def answer(self) -> AnswerStep | None:
        """The answer of the program, if it has ended."""
        first = self.steps[0]
        return first if isinstance(first, AnswerStep) else None


Ran: TypeAlias = NextSteps | WorkflowError
"""What a program asks for, or why it cannot go on."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunRequest:
    """A program that is to be run again; the other fields are the arguments of `resume`."""

    name: str
    version: int
    question: str
    rounds: Sequence[Sequence[StepResult]]
    steps_max: int
    messages: Messages = ()

    @property
    def label(self) -> str:
        return f"{self.name}@{self.version}"

    @property
    def place(self) -> str:
        """The step after these rounds, in messages."""
        return f"{self.label}, step {sum(map(len, self.rounds)) + 1}"


class ProgramProcess(Protocol):
    """Runs programs in another process."""

    def submit(
        self, request: RunRequest, then: Callable[[Ran], None], is_wanted: Callable[[], bool]
    ) -> None:
        """Runs a program, and calls `then` on another thread. Does not block.

        `is_wanted` is asked just before; if it is not, `then` is never called.
        """

    def run(self, request: RunRequest) -> NextSteps:
        """Runs a program. Blocks. Raises `WorkflowError`."""


Programs: TypeAlias = Mapping[tuple[str, int], Program]
"""The programs of a service, by name and version."""


def workflow(
    name: str, *, version: int, steps_max: int = STEPS_MAX
) -> Callable[[Callable[..., Run]], Program]:
    """Makes a program of a generator function. `version`: raise it with every change.

    `steps_max`: steps of a run, without the answer. Raises `ConfigError` where a name cannot be one
    or the function yields nothing.
    """
    if not NAME.fullmatch(name):
        raise ConfigError(
            f"{name!r} cannot name a workflow: use small letters, digits, - and _, at most 64"
        )

    def made(function: Callable[..., Run]) -> Program:
        if not inspect.isgeneratorfunction(function):
            raise ConfigError(f"workflow {name!r} yields no step; see `carpool workflows`")
        try:
            source, digest = inspect.getsource(function), source_digest(function)
        except OSError:
            raise ConfigError(
                f"the source of workflow {name!r} cannot be read; save it in a file"
            ) from None
        return Program(
            name=name,
            version=version,
            function=function,
            digest=digest,
            steps_max=steps_max,
            doc=inspect.getdoc(function) or "",
            file=inspect.getsourcefile(function),
            source=source,
        )

    return made


def source_digest(function: Callable[..., Run]) -> str:
    """Returns a digest of the source of a function, and of all that it uses of its module.

    Comments do not count, nor other programs of the module, nor the name of the function: an old
    version may stay in the module under another name.
    """
    own = function.__qualname__.partition(".")[0]
    tree = ast.parse(inspect.getsource(sys.modules[function.__module__]))
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == own:
            node.name = OWN
        elif isinstance(node, ast.Name) and node.id == own:
            node.id = OWN
    statements = [one for each in tree.body for one in _one_import_each(each)]
    used, kept = {OWN}, list[ast.stmt]()
    while more := [each for each in statements if each not in kept and _concerns(each, used)]:
        kept += more
        used |= {name for each in more for name, _ in _names(each)}
    in_order = sorted((each for each in statements if each in kept), key=_place)
    return text_digest("\n".join(map(ast.unparse, in_order)))


def _place(statement: ast.stmt) -> tuple[int, str]:
    """Returns the key of the order: imports, sorted; the program; the others, as they stand."""
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return 0, ast.unparse(statement)
    return 1 if (OWN, True) in _names(statement) else 2, ""


def _one_import_each(statement: ast.stmt) -> Iterator[ast.stmt]:
    """Yields a statement; an import of several names as several imports."""
    match statement:
        case ast.Import(names=names):
            yield from (ast.Import(names=[name]) for name in names)
        case ast.ImportFrom(module=module, names=names, level=level):
            yield from (ast.ImportFrom(module=module, names=[one], level=level) for one in names)
        case _:
            yield statement


def _concerns(statement: ast.stmt, used: Set[str]) -> bool:
    """Returns whether a statement binds one of these names; or uses one, and binds none."""
    names = list(_names(statement))
    bound = {name for name, is_bound in names if is_bound}
    return not used.isdisjoint(bound or {name for name, _ in names})


def _names(statement: ast.stmt) -> Iterator[tuple[str, bool]]:
    """Yields each name in a statement, and whether the statement binds it."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield statement.name, True
        yield from ((node.id, False) for node in ast.walk(statement) if isinstance(node, ast.Name))
        return
    for node in ast.walk(statement):
        if isinstance(node, ast.Name):
            yield node.id, isinstance(node.ctx, ast.Store)
        elif isinstance(node, ast.alias):
            yield (node.asname or node.name).partition(".")[0], True


def text_digest(text: str) -> str:
    """Returns the digest of a text (BLAKE2b, hexadecimal)."""
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def find(programs: Programs, name: str, version: int | None = None) -> Program | None:
    """Returns the program of this name and version, or the newest version of the name."""
    versions = [each for (known, _), each in programs.items() if known == name]
    if version is not None:
        return programs.get((name, version))
    return max(versions, key=lambda program: program.version, default=None)
