"""What a service and the child process of a module say to each other. Pure.

A message is its length in 4 bytes and MessagePack. The service sends a `ModuleText`, then each
`ProgramCall`; the child answers each message. What comes from the child is data: it is decoded into
these types, and every step is checked and digested again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from carpool.workflow.program import NextSteps, Program, ProgramProcess
from carpool.workflow.resume import checked_steps
from carpool.workflow.steps import (
    AnswerStep,
    Found,
    Generate,
    Retrieve,
    Said,
    Value,
    WorkflowError,
    is_passages,
)
from schemas.hit import Hit
from schemas.workflow import StepResult

LENGTH_BYTES = 4
MESSAGE_BYTES_MAX = 8 * 1024 * 1024
"""A round has at most 8 steps, each with at most what a journal may hold and a few long texts."""


class ModuleText(msgspec.Struct, frozen=True, kw_only=True):
    """Load this module: a .py file or a name; `text`: its source, where it was read before."""

    module: str
    text: str | None = None


class ProgramFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A `Program` without its function."""

    name: str
    version: int
    digest: str
    steps_max: int
    doc: str
    file: str | None
    source: str | None

    @classmethod
    def of(cls, program: Program) -> ProgramFacts:
        """Returns the facts of a program."""
        return cls(**{name: getattr(program, name) for name in cls.__struct_fields__})

    def program(self, process: ProgramProcess) -> Program:
        """Returns the program, which runs in `process`."""
        return Program(function=None, process=process, **msgspec.structs.asdict(self))


class ModuleLoaded(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The programs of a module, and its source."""

    text: str
    programs: tuple[ProgramFacts, ...]


class ModuleRefused(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Why a module cannot be loaded."""

    message: str


class ProgramCall(msgspec.Struct, frozen=True, kw_only=True):
    """Run a program; the fields are those of `carpool.workflow.resume.resume`."""

    name: str
    version: int
    question: str
    rounds: Sequence[Sequence[StepResult]]
    steps_max: int


class PassagesValue(msgspec.Struct, frozen=True, tag="passages"):
    """A value of a step that is passages."""

    hits: tuple[Hit, ...]


class SaidValue(msgspec.Struct, frozen=True, tag="said"):
    """A value of a step that the model wrote."""

    text: str
    tokens: int
    is_cut: bool


SentValue: TypeAlias = str | bool | int | float | PassagesValue | SaidValue | list[str | list[str]]


class RetrieveAsked(msgspec.Struct, frozen=True, tag="retrieve"):
    """A `Retrieve`."""

    text: str
    top_k: int | None


class GenerateAsked(msgspec.Struct, frozen=True, kw_only=True, tag="generate"):
    """A `Generate`, or the answer."""

    is_answer: bool
    template: str
    prompt: str | None
    max_tokens: int | None
    temperature: float
    seed: int | None
    passages_max: int | None
    values: dict[str, SentValue]


class ProgramAsks(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The next round of a program."""

    steps: tuple[RetrieveAsked | GenerateAsked, ...]
    is_list: bool


class ProgramFails(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A `WorkflowError`."""

    message: str
    kind: str


ToChild: TypeAlias = ModuleText | ProgramCall
FromChild: TypeAlias = ModuleLoaded | ModuleRefused | ProgramAsks | ProgramFails

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[FromChild] = msgspec.msgpack.Decoder(FromChild)


def framed(message: ToChild | FromChild) -> bytes:
    """Returns a message with its length. Raises `ValueError` for one that is too large."""
    body = _encoder.encode(message)
    if len(body) > MESSAGE_BYTES_MAX:
        raise ValueError(f"{len(body)} bytes, and at most {MESSAGE_BYTES_MAX} are allowed")
    return len(body).to_bytes(LENGTH_BYTES, "big") + body


def from_child(body: bytes) -> FromChild:
    """Decodes what a child said. Raises `msgspec.DecodeError`."""
    return _decoder.decode(body)


def asks_of(asked: NextSteps) -> ProgramAsks:
    """Returns the message of a round."""
    return ProgramAsks(steps=tuple(map(_sent_step, asked.steps)), is_list=asked.is_list)


def next_steps(asks: ProgramAsks, done: int) -> NextSteps:
    """Returns the round of a message, checked. Raises `WorkflowError`. `done`: finished steps."""
    steps = [_step(each) for each in asks.steps]
    if not steps and not asks.is_list:
        raise WorkflowError("it asks for nothing")
    return checked_steps(steps if asks.is_list else steps[0], done)


def _sent_step(step: Retrieve | Generate) -> RetrieveAsked | GenerateAsked:
    if isinstance(step, Retrieve):
        return RetrieveAsked(str(step.text), step.top_k)
    return GenerateAsked(
        is_answer=isinstance(step, AnswerStep),
        template=step.template,
        prompt=step.prompt,
        max_tokens=step.max_tokens,
        temperature=step.temperature,
        seed=step.seed,
        passages_max=step.passages_max,
        values={name: _sent_value(value) for name, value in step.values.items()},
    )


def _sent_value(value: Value) -> SentValue:
    if isinstance(value, Said):
        return SaidValue(value.text, value.tokens, value.is_cut)
    if isinstance(value, str | int | float):
        return value
    rows: Sequence[Any] = value
    if is_passages(value):
        return PassagesValue(tuple(rows))
    return [str(row) if isinstance(row, str | Said) else list(map(str, row)) for row in rows]


def _step(asked: RetrieveAsked | GenerateAsked) -> Retrieve | Generate:
    if isinstance(asked, RetrieveAsked):
        return Retrieve(asked.text, asked.top_k)
    values: Mapping[str, Any] = {name: _value(value) for name, value in asked.values.items()}
    return (AnswerStep if asked.is_answer else Generate)(
        asked.template,
        prompt=asked.prompt,
        max_tokens=asked.max_tokens,
        temperature=asked.temperature,
        seed=asked.seed,
        passages_max=asked.passages_max,
        **values,
    )


def _value(value: SentValue) -> Value:
    if isinstance(value, PassagesValue):
        return Found(value.hits)
    if isinstance(value, SaidValue):
        return Said(value.text, tokens=value.tokens, is_cut=value.is_cut)
    return value
