"""The child process of a module: loads it, and runs its programs, one call at a time.

It ends when the service does, because that closes its socket. A call that takes more than `CPU_S`
of CPU time ends it: neither the program nor the module can catch that.
"""

from __future__ import annotations

import resource
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields
from functools import partial
from multiprocessing.connection import Connection

import msgspec

from carpool.errors import ConfigError
from carpool.workflow.messages import (
    Failed,
    ModuleLoaded,
    ModuleText,
    asks_of,
    packed,
)
from carpool.workflow.module import load_module
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
        return packed(asks_of(resume(program, call.question, call.rounds, call.steps_max)))
    except WorkflowError as error:
        return packed(Failed(message=str(error), kind=error.kind))
    except BaseException as error:  # of a value, where it is read
        what = f"what it asks for cannot be sent: {in_words(error)}"
        return packed(Failed(message=f"{call.place}: {what}"))
