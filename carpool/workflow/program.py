"""Programs: functions that are workflows, each with its name, version and digest. Pure."""

from __future__ import annotations

import ast
import hashlib
import inspect
import re
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, TypeAlias

from carpool.errors import ConfigError
from carpool.workflow.steps import AnswerStep, Step

STEPS_MAX = 12
NAME = re.compile(r"[a-z][a-z0-9_-]{0,63}")

Asks: TypeAlias = Step | Sequence[Step]
Run: TypeAlias = Generator[Asks, Any, AnswerStep]


@dataclass(frozen=True, kw_only=True, slots=True)
class Program:
    """A workflow that can be run. `function` gets the question and returns a generator of steps.

    `digest`: of its source (`source_digest`); a workflow goes on only with the digest that it began
    with. `summary`: the first line of its docstring.
    """

    name: str
    version: int
    function: Callable[[str], Run]
    digest: str
    steps_max: int = STEPS_MAX
    summary: str = ""

    @property
    def label(self) -> str:
        """The program in messages: `name@version`."""
        return f"{self.name}@{self.version}"


Programs: TypeAlias = Mapping[tuple[str, int], Program]
"""The programs of a service, by name and version."""


def workflow(
    name: str, *, version: int, steps_max: int = STEPS_MAX
) -> Callable[[Callable[[str], Run]], Program]:
    """Makes a program of a generator function. `version`: raise it with every change.

    `steps_max`: steps of a run, without the answer. Raises `ConfigError` where a name cannot be one
    or the function yields nothing.
    """
    if not NAME.fullmatch(name):
        raise ConfigError(
            f"{name!r} cannot name a workflow: use small letters, digits, - and _, at most 64"
        )

    def made(function: Callable[[str], Run]) -> Program:
        if not inspect.isgeneratorfunction(function):
            raise ConfigError(f"workflow {name!r} yields no step; see `carpool workflows`")
        try:
            digest = source_digest(function)
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
            summary=(inspect.getdoc(function) or "").partition("\n")[0],
        )

    return made


def source_digest(function: Callable[[str], Run]) -> str:
    """Returns a digest of the source of a function, and of all that it uses of its module.

    Comments do not count, nor do other programs of the module.
    """
    tree = ast.parse(inspect.getsource(sys.modules[function.__module__]))
    used = {function.__qualname__.partition(".")[0]}
    kept = list[ast.stmt]()
    while more := [each for each in tree.body if each not in kept and _concerns(each, used)]:
        kept += more
        used |= {name for each in more for name, _ in _names(each)}
    return text_digest("\n".join(ast.unparse(each) for each in tree.body if each in kept))


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
