"""A module of programs in a child process: programs of users cannot stop a service.

One call runs at a time, so the call that is in hand when the child dies is the one that killed it.
It is tried once more in a fresh child. Calls wait in this order: first those of programs that have
not killed a child since they last ran, then those that have not killed one themselves, then those
with finished steps.
"""

from __future__ import annotations

import heapq
import itertools
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection

import msgspec
import structlog

from carpool.errors import ConfigError
from carpool.workflow.child import CPU_S, LOAD_CPU_S
from carpool.workflow.messages import (
    MESSAGE_BYTES_MAX,
    FromChild,
    ModuleLoaded,
    ModuleRefused,
    ModuleText,
    ProgramAsks,
    ProgramCall,
    ProgramFails,
    ToChild,
    from_child,
    next_steps,
    packed,
)
from carpool.workflow.program import NextSteps, Program, Ran, RunRequest
from carpool.workflow.resume import place_of
from carpool.workflow.steps import WorkflowError

log = structlog.get_logger()

WALL_FACTOR = 10
"""A busy machine may take so many times as long as the CPU time that is allowed."""
AGAIN_S = 1.0
"""How long a child that cannot be started is waited for: the machine may lack memory."""
MAIN = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[2]); "
    "from carpool.workflow.child import main; main(int(sys.argv[1]))"
)


class _ChildDied(Exception):
    """The child gave no answer that can be used; the message says why."""


@dataclass(kw_only=True, slots=True)
class _Call:
    request: RunRequest
    then: Callable[[Ran], None]
    is_wanted: Callable[[], bool]
    number: int
    has_killed: bool = False

    @property
    def program(self) -> str:
        return self.request.program.label


class ModuleProcess:
    """Implements `ProgramProcess` for the programs of a module. Thread-safe."""

    def __init__(self, module: str, *, hash_seed: int = 0) -> None:
        """`hash_seed`: the order of sets of texts depends on it."""
        self._module = ModuleText(module=module)
        self._hash_seed = hash_seed
        self._child: tuple[subprocess.Popen[bytes], Connection] | None = None
        self._changed = threading.Condition()
        self._numbers = itertools.count()
        self._calls: list[tuple[tuple[bool, bool, bool, int], _Call]] = []
        self._killers: set[str] = set()
        self._is_closed = False
        self._thread = threading.Thread(
            target=self._serve, name=f"workflows of {module}", daemon=True
        )

    def start(self) -> tuple[Program, ...]:
        """Returns the programs. Raises `ConfigError` where the module cannot be loaded."""
        try:
            loaded = self._load()
        except (ConfigError, _ChildDied) as error:
            self._end()
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(
                f"the workflows of {self._module.module}: its module {error}"
            ) from None
        self._module = msgspec.structs.replace(self._module, text=loaded.text)
        self._thread.start()
        return tuple(Program(function=None, process=self, **facts) for facts in loaded.programs)

    def submit(
        self, request: RunRequest, then: Callable[[Ran], None], is_wanted: Callable[[], bool]
    ) -> None:
        """See `ProgramProcess`."""
        call = _Call(request=request, then=then, is_wanted=is_wanted, number=next(self._numbers))
        with self._changed:
            self._add(call)
            self._changed.notify()

    def run(self, request: RunRequest) -> NextSteps:
        """See `ProgramProcess`."""
        future = Future[Ran]()
        self.submit(request, future.set_result, lambda: True)
        ran = future.result()
        if isinstance(ran, WorkflowError):
            raise ran
        return ran

    def close(self) -> None:
        """Ends the child, and drops what waits."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join()

    # ---- the thread

    def _serve(self) -> None:
        while (call := self._next()) is not None:
            if not call.is_wanted():
                continue
            try:
                ran = self._ran(call.request)
            except _ChildDied as death:
                log.warning("a workflow ended its process", program=call.program, cause=str(death))
                if not self._may_try_again(call):
                    where = place_of(call.program, call.request.rounds)
                    call.then(WorkflowError(f"{where}: the program {death}, twice"))
            else:
                self._killers.discard(call.program)
                call.then(ran)
        self._end()

    def _next(self) -> _Call | None:
        with self._changed:
            self._changed.wait_for(lambda: self._calls or self._is_closed)
            return None if self._is_closed else heapq.heappop(self._calls)[1]

    def _add(self, call: _Call) -> None:
        has_steps = any(call.request.rounds)
        order = (call.program in self._killers, call.has_killed, not has_steps, call.number)
        heapq.heappush(self._calls, (order, call))

    def _may_try_again(self, call: _Call) -> bool:
        """Puts a call that ended the child behind the others, once."""
        self._end()
        is_first, call.has_killed = not call.has_killed, True
        with self._changed:
            self._killers.add(call.program)
            waiting = [each for _, each in self._calls] + [call] * is_first
            self._calls = []
            for each in waiting:
                self._add(each)
        return is_first

    def _ran(self, request: RunRequest) -> Ran:
        self._start_again()
        program = request.program
        reply = self._answer_to(
            ProgramCall(
                name=program.name,
                version=program.version,
                question=request.question,
                rounds=request.rounds,
                steps_max=request.steps_max,
            ),
            CPU_S,
        )
        if isinstance(reply, ProgramFails):
            return WorkflowError(reply.message, reply.kind)
        if not isinstance(reply, ProgramAsks):
            raise _ChildDied("answered something else")
        try:
            return next_steps(reply, sum(map(len, request.rounds)))
        except WorkflowError as error:
            where = place_of(program.label, request.rounds)
            return WorkflowError(f"{where}: {error}", error.kind)

    def _start_again(self) -> None:
        while self._child is None and not self._is_closed:
            try:
                self._load()
            except (ConfigError, OSError, _ChildDied) as error:  # it was loaded before
                log.warning("the process of a module of workflows does not start", error=str(error))
                self._end()
                time.sleep(AGAIN_S)

    def _load(self) -> ModuleLoaded:
        ours, theirs = Pipe()
        with theirs:
            command = [sys.executable, "-P", "-s", "-c", MAIN, str(theirs.fileno())]
            child = subprocess.Popen(
                [*command, json.dumps(sys.path)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env={"PYTHONHASHSEED": str(self._hash_seed)},  # secrets are in ours
            )
        self._child = child, ours
        reply = self._answer_to(self._module, LOAD_CPU_S)
        if isinstance(reply, ModuleRefused):
            raise ConfigError(reply.message)
        if not isinstance(reply, ModuleLoaded):
            raise _ChildDied("answered something else")
        return reply

    def _answer_to(self, message: ToChild, cpu_s: float) -> FromChild:
        """Sends a message, and returns the answer. Raises `_ChildDied`."""
        if self._child is None:
            raise _ChildDied("has no process")
        child, channel = self._child
        try:
            channel.send_bytes(packed(message))
            if not channel.poll(WALL_FACTOR * cpu_s):
                raise _ChildDied(f"gave no answer for {WALL_FACTOR * cpu_s:g} s")
            return from_child(channel.recv_bytes(MESSAGE_BYTES_MAX))
        except (ConnectionError, EOFError):
            raise _ChildDied(_how(child.wait(), cpu_s)) from None
        except (OSError, msgspec.DecodeError) as error:  # it is too long, or damaged
            raise _ChildDied(f"gave an answer that cannot be read ({error})") from None

    def _end(self) -> None:
        if self._child is not None:
            child, channel = self._child
            self._child = None
            channel.close()
            child.kill()
            child.wait()


class TwoProcesses(ModuleProcess):
    """Runs programs in two processes, to find one that asks for other steps when it runs again."""

    def __init__(self, module: str) -> None:
        super().__init__(module)
        self._other = ModuleProcess(module, hash_seed=1)

    def start(self) -> tuple[Program, ...]:
        """See `ModuleProcess`."""
        programs = super().start()
        self._other.start()
        return programs

    def run(self, request: RunRequest) -> NextSteps:
        """See `ProgramProcess`. Raises `WorkflowError` where the two ask for other steps."""
        asked = super().run(request)
        if self._other.run(request).digests != asked.digests:
            raise WorkflowError(
                f"{place_of(request.program.label, request.rounds)}: in another process the "
                "program asks for another step: it is not pure (the order of a set, the address of "
                "an object in a text)",
                "workflow_changed",
            )
        return asked

    def close(self) -> None:
        """See `ModuleProcess`."""
        super().close()
        self._other.close()


def _how(status: int, cpu_s: float) -> str:
    """Returns how a child ended."""
    if -status in (signal.SIGPROF, signal.SIGXCPU):
        return (
            f"computed for {cpu_s:g} s without an answer: an endless loop, or a pattern that tries "
            "too much"
        )
    return f"ended its process (status {status})"
