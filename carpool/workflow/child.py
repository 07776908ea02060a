"""The child process of a module: loads it, and runs its programs, one call at a time.

It ends when the service does, because that closes its socket. A call that takes more than `CPU_S`
of CPU time ends it: neither the program nor the module can catch that. A module may import little,
because its programs must be pure. The check keeps mistakes out, not attackers.
"""

from __future__ import annotations

import ast
import importlib.util
import linecache
import resource
import signal
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import fields
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType

import msgspec

from carpool.errors import ConfigError
from carpool.workflow.messages import Failed, ModuleLoaded, ModuleText, asks_of, packed
from carpool.workflow.program import Program, RunRequest
from carpool.workflow.resume import in_words, resume
from carpool.workflow.steps import WorkflowError

CPU_S = 0.25
"""CPU time of a call. Whole seconds of the process limit it, too, should the timer fail."""
LOAD_CPU_S = 5.0
"""CPU time to load a module."""
MEMORY_BYTES = 256 * 1024 * 1024
"""Address space: an allocation above it raises `MemoryError`."""


def main(channel: int) -> None:
    """Answers messages from this socket, by its file descriptor, until it is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C: the service drains
    _limit(resource.RLIMIT_AS, MEMORY_BYTES)
    programs: dict[tuple[str, int], Program] = {}
    service = Connection(channel)
    with suppress(EOFError):
        module = msgspec.msgpack.decode(service.recv_bytes(), type=ModuleText)
        _answer(service, LOAD_CPU_S, lambda: packed(_loaded(module, programs)))
        decoder = msgspec.msgpack.Decoder(RunRequest)
        while True:
            call = decoder.decode(service.recv_bytes())
            _answer(service, CPU_S, partial(_run, programs, call))


def _answer(service: Connection, cpu_s: float, answer: Callable[[], bytes]) -> None:
    """Sends an answer, if it takes no more CPU time than this."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    _limit(resource.RLIMIT_CPU, int(used.ru_utime + used.ru_stime + cpu_s) + 2)
    signal.setitimer(signal.ITIMER_PROF, cpu_s)
    reply = answer()
    signal.setitimer(signal.ITIMER_PROF, 0)
    service.send_bytes(reply)


def _limit(what: int, most: int) -> None:
    """Sets a limit of this process, if there is no lower one already."""
    _, hard = resource.getrlimit(what)
    resource.setrlimit(what, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def _loaded(module: ModuleText, programs: dict[tuple[str, int], Program]) -> ModuleLoaded | Failed:
    try:
        found, text = load_module(module.module, module.text)
    except ConfigError as error:
        return Failed(message=str(error))
    programs |= {(each.name, each.version): each for each in found}
    names = {each.name for each in fields(Program)} - {"function", "process"}
    facts = ({name: getattr(each, name) for name in names} for each in found)
    return ModuleLoaded(text=text, programs=tuple(facts))


def _run(programs: dict[tuple[str, int], Program], call: RunRequest) -> bytes:
    program = programs[call.name, call.version]
    try:
        asked = resume(program, call.question, call.rounds, call.steps_max, call.messages)
        return packed(asks_of(asked))
    except WorkflowError as error:
        return packed(Failed(message=str(error), kind=error.kind))
    except BaseException as error:  # of a value, where it is read
        what = f"what it asks for cannot be sent: {in_words(error)}"
        return packed(Failed(message=f"{call.place}: {what}"))


MAY_IMPORT = frozenset(
    {
        "__future__",
        "carpool.workflow",
        "collections",
        "collections.abc",
        "dataclasses",
        "enum",
        "functools",
        "itertools",
        "json",
        "math",
        "re",
        "string",
        "textwrap",
        "typing",
        "unicodedata",
    }
)
"""What a module of programs may import: nothing with a clock, randomness, network or files."""
MAY_NOT_USE = frozenset({"open", "eval", "exec", "compile", "input", "__import__", "id", "hash"})


def load_module(name: str, text: str | None = None) -> tuple[list[Program], str]:
    """Returns the programs of a module, and its source. Raises `ConfigError`.

    `name` is that of a .py file or a module. `text` is its source, if not what the file holds now.
    """
    try:
        path = _path_of(name)
        text = path.read_text(encoding="utf-8") if text is None else text
        check_source(text, name)
        module = _executed(path, text)
    except ConfigError:
        raise
    except BaseException as error:
        raise ConfigError(
            f"the workflows of {name} cannot be loaded: {type(error).__name__}: {error}; see "
            "workflow.modules"
        ) from error
    found = [value for value in vars(module).values() if isinstance(value, Program)]
    if not found:
        raise ConfigError(f"{name} has no workflow: decorate a generator function with @workflow")
    return found, text


def _path_of(name: str) -> Path:
    if Path(name).suffix == ".py":
        return Path(name)
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise ConfigError(f"there is no module {name!r}; see workflow.modules")
    return Path(spec.origin)


def _executed(path: Path, text: str) -> ModuleType:
    module = ModuleType(f"carpool_workflows_{path.stem}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module
    # `inspect` finds the source of a program there, whatever the file holds now.
    linecache.cache[str(path)] = (len(text), None, text.splitlines(keepends=True), str(path))
    exec(compile(text, path, "exec"), module.__dict__)  # noqa: S102
    return module


def check_source(text: str, name: str) -> None:
    """Raises `ConfigError` where a module imports or calls what a program may not use."""
    for node in ast.walk(ast.parse(text, name)):
        for imported in _imports(node):
            if imported not in MAY_IMPORT:
                raise ConfigError(
                    f"{name}, line {getattr(node, 'lineno', 0)}: a workflow may not import "
                    f"{imported!r}: it is run again after each step, and must ask for the same "
                    f"steps. It may import: {', '.join(sorted(MAY_IMPORT))}"
                )
        if isinstance(node, ast.Name) and node.id in MAY_NOT_USE:
            raise ConfigError(f"{name}, line {node.lineno}: a workflow may not use {node.id}")


def _imports(node: ast.AST) -> Iterable[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return ["." * node.level + (node.module or "")]
    return []
