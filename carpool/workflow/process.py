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
from typing import TypeAlias, TypeVar

import msgspec
import structlog
from msgspec.msgpack import Decoder

from carpool.errors import ConfigError
from carpool.workflow.child import CPU_S, LOAD_CPU_S
from carpool.workflow.messages import (
    MESSAGE_BYTES_MAX,
    OF_MODULE,
    OF_PROGRAM,
    Failed,
    Message,
    ModuleLoaded,
    ModuleText,
    next_steps,
    packed,
)
from carpool.workflow.program import NextSteps, Program, Ran, RunRequest
from carpool.workflow.steps import WorkflowError

log = structlog.get_logger()
Reply = TypeVar("Reply")
_Order: TypeAlias = tuple[bool, bool, bool, int]

WALL_FACTOR = 10
"""A busy machine may take so many times as long as the CPU time that is allowed."""
END_S = 1.0
"""How long a child that has closed its socket may take to end."""
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


class ModuleProcess:
    """Implements `ProgramProcess` for the programs of a module. Thread-safe."""

    def __init__(self, module: str, *, hash_seed: int = 0) -> None:
        """`hash_seed`: the order of sets of texts depends on it."""
        self._module = ModuleText(module=module)
        self._hash_seed = hash_seed
        self._child: tuple[subprocess.Popen[bytes], Connection] | None = None
        self._changed = threading.Condition()
        self._numbers = itertools.count()
        self._calls: list[tuple[_Order, _Call]] = []
        self._killers: set[str] = set()
        self._is_closed = False
        self._thread = threading.Thread(
            target=self._serve, name=f"workflows of {module}", daemon=True
        )

    def start(self) -> tuple[Program, ...]:
        """Returns the programs. Raises `ConfigError` where the module cannot be loaded."""
        loaded = self._load()
        self._module = msgspec.structs.replace(self._module, text=loaded.text)
        self._thread.start()
        return tuple(Program(function=None, process=self, **facts) for facts in loaded.programs)

    def submit(
        self, request: RunRequest, then: Callable[[Ran], None], is_wanted: Callable[[], bool]
    ) -> None:
        self._add(
            _Call(request=request, then=then, is_wanted=is_wanted, number=next(self._numbers))
        )

    def run(self, request: RunRequest) -> NextSteps:
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

    def _add(self, call: _Call) -> None:
        with self._changed:
            heapq.heappush(self._calls, (self._order(call), call))
            self._changed.notify()

    def _order(self, call: _Call) -> _Order:
        has_steps = any(call.request.rounds)
        return call.request.label in self._killers, call.has_killed, not has_steps, call.number

    # ---- the thread

    def _serve(self) -> None:
        while (call := self._next()) is not None:
            if not call.is_wanted():
                continue
            program = call.request.label
            try:
                ran = self._ran(call.request)
            except _ChildDied as death:
                log.warning("a workflow ended its process", program=program, cause=str(death))
                self._end()
                self._killers.add(program)
                if not call.has_killed:
                    call.has_killed = True
                    self._add(call)
                    continue
                ran = WorkflowError(f"{call.request.place}: the program {death}, twice")
            except Exception as error:  # a defect ends this workflow, and not the thread
                log.exception("a program could not be run", program=program)
                ran = WorkflowError(f"{call.request.place}: a defect of Carpool: {error!r}")
            else:
                self._killers.discard(program)
            try:
                call.then(ran)
            except Exception:
                log.exception("what follows a program failed", program=program)
        self._end()

    def _next(self) -> _Call | None:
        with self._changed:
            while True:
                self._changed.wait_for(lambda: self._calls or self._is_closed)
                if self._is_closed:
                    return None
                order, call = heapq.heappop(self._calls)
                if order >= (now := self._order(call)):
                    return call
                heapq.heappush(self._calls, (now, call))  # its program has killed a child since

    def _ran(self, request: RunRequest) -> Ran:
        while self._child is None and not self._is_closed:
            try:
                self._load()
            except (ConfigError, OSError) as error:  # it was loaded before
                log.warning("the process of a module of workflows does not start", error=str(error))
                time.sleep(AGAIN_S)
        reply = self._answer_to(request, CPU_S, OF_PROGRAM)
        if isinstance(reply, Failed):
            return WorkflowError(reply.message, reply.kind)
        try:
            return next_steps(reply)
        except WorkflowError as error:
            return WorkflowError(f"{request.place}: {error}", error.kind)

    def _load(self) -> ModuleLoaded:
        """Starts a child that loads the module. Raises `ConfigError`, and ends it, if it cannot."""
        ours, theirs = Pipe()
        with theirs:
            command = [sys.executable, "-P", "-s", "-c", MAIN, str(theirs.fileno())]
            child = subprocess.Popen(
                [*command, json.dumps(sys.path)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env={"PYTHONHASHSEED": str(self._hash_seed)},  # secrets are in ours
            )
        self._child = child, ours
        try:
            reply = self._answer_to(self._module, LOAD_CPU_S, OF_MODULE)
        except _ChildDied as death:
            name = self._module.module
            reply = Failed(message=f"the workflows of {name}: its module {death}")
        if isinstance(reply, Failed):
            self._end()
            raise ConfigError(reply.message)
        return reply

    def _answer_to(self, message: Message, cpu_s: float, decoder: Decoder[Reply]) -> Reply:
        """Sends a message, and returns the answer. Raises `_ChildDied`."""
        if self._child is None:
            raise _ChildDied("has no process")
        child, channel = self._child
        try:
            channel.send_bytes(packed(message))
            if not channel.poll(WALL_FACTOR * cpu_s):
                raise _ChildDied(f"gave no answer for {WALL_FACTOR * cpu_s:g} s")
            return decoder.decode(channel.recv_bytes(MESSAGE_BYTES_MAX))
        except (ConnectionError, EOFError):
            raise _ChildDied(_how(child, cpu_s)) from None
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
        self._other.start()
        return super().start()

    def run(self, request: RunRequest) -> NextSteps:
        """See `ProgramProcess`. Raises `WorkflowError` where the two ask for other steps."""
        asked = super().run(request)
        if self._other.run(request).digests != asked.digests:
            raise WorkflowError(
                f"{request.place}: in another process the program asks for another step: it is not "
                "pure (the order of a set, the address of an object in a text)",
                "workflow_changed",
            )
        return asked


def _how(child: subprocess.Popen[bytes], cpu_s: float) -> str:
    """Returns how a child ended that has closed its socket."""
    try:
        status = child.wait(END_S)
    except subprocess.TimeoutExpired:
        return "closed its socket"
    if -status in (signal.SIGPROF, signal.SIGXCPU):
        return (
            f"computed for {cpu_s:g} s without an answer: an endless loop, or a pattern that tries "
            "too much"
        )
    return f"ended its process (status {status})"
