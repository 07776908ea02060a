"""The child process of a module: loads it, and runs its programs, one call at a time.

It ends with its standard input, so it never outlives the service. A call that takes more than
`CPU_S` of CPU time ends it: neither the program nor the module can catch that.
"""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Callable
from dataclasses import fields
from typing import BinaryIO

import msgspec

from carpool.errors import ConfigError
from carpool.workflow.messages import (
    LENGTH_BYTES,
    FromChild,
    ModuleLoaded,
    ModuleRefused,
    ModuleText,
    ProgramCall,
    ProgramFails,
    asks_of,
    framed,
)
from carpool.workflow.module import load_module
from carpool.workflow.program import Program
from carpool.workflow.resume import in_words, place_of, resume
from carpool.workflow.steps import WorkflowError

CPU_S = 0.25
"""CPU time of a call. Whole seconds of the process limit it, too, should the timer fail."""
LOAD_CPU_S = 5.0
"""CPU time to load a module."""
MEMORY_BYTES = 256 * 1024 * 1024
"""Address space: an allocation above it raises `MemoryError`."""


def main() -> None:
    """Answers messages from standard input, until it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C: the service drains
    heard, said = os.fdopen(0, "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what a program prints is no message
    _limit(resource.RLIMIT_AS, MEMORY_BYTES)
    first = _read(heard)
    if first is None:
        return
    module = msgspec.msgpack.decode(first, type=ModuleText)
    programs: dict[tuple[str, int], Program] = {}
    _answer(said, LOAD_CPU_S, lambda: framed(_loaded(module, programs)))
    decoder = msgspec.msgpack.Decoder(ProgramCall)
    while (body := _read(heard)) is not None:
        call = decoder.decode(body)
        _answer(said, CPU_S, lambda call=call: _run(programs, call))  # type: ignore[misc]


def _read(heard: BinaryIO) -> bytes | None:
    length = heard.read(LENGTH_BYTES)
    return heard.read(int.from_bytes(length, "big")) if len(length) == LENGTH_BYTES else None


def _answer(said: BinaryIO, cpu_s: float, answer: Callable[[], bytes]) -> None:
    """Sends an answer, if it takes no more CPU time than this."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    _limit(resource.RLIMIT_CPU, int(used.ru_utime + used.ru_stime + cpu_s) + 2)
    signal.setitimer(signal.ITIMER_PROF, cpu_s)
    reply = answer()
    signal.setitimer(signal.ITIMER_PROF, 0)
    said.write(reply)
    said.flush()


def _limit(what: int, most: int) -> None:
    """Sets a limit of this process, if there is no lower one already."""
    _, hard = resource.getrlimit(what)
    resource.setrlimit(what, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def _loaded(module: ModuleText, programs: dict[tuple[str, int], Program]) -> FromChild:
    try:
        found, text = load_module(module.module, module.text)
    except ConfigError as error:
        return ModuleRefused(message=str(error))
    programs |= {(each.name, each.version): each for each in found}
    names = {each.name for each in fields(Program)} - {"function", "process"}
    facts = ({name: getattr(each, name) for name in names} for each in found)
    return ModuleLoaded(text=text, programs=tuple(facts))


def _run(programs: dict[tuple[str, int], Program], call: ProgramCall) -> bytes:
    program = programs[call.name, call.version]
    try:
        return framed(asks_of(resume(program, call.question, call.rounds, call.steps_max)))
    except WorkflowError as error:
        return framed(ProgramFails(message=str(error), kind=error.kind))
    except BaseException as error:  # of a value, where it is read
        where, what = place_of(program.label, call.rounds), in_words(error)
        message = f"{where}: what it asks for cannot be sent: {what}"
        return framed(ProgramFails(message=message, kind="workflow_failed"))
