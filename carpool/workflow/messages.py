"""What a service and the child process of a module say to each other. Pure.

A message is MessagePack. The service sends a `ModuleText`, then each `ProgramCall`; the child
answers each message. What a child says is data: every step is checked and digested again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any, TypeAlias

import msgspec

from carpool.workflow.program import NextSteps
from carpool.workflow.resume import checked_steps
from carpool.workflow.steps import (
    AnswerStep,
    Found,
    Generate,
    Retrieve,
    Said,
    WorkflowError,
    is_passages,
)
from schemas.hit import Hit
from schemas.workflow import StepResult

MESSAGE_BYTES_MAX = 8 * 1024 * 1024
"""A round has at most 8 steps, each with at most what a journal may hold and a few long texts."""
FOUND, SAID = 1, 2
"""Types of MessagePack for these two classes."""


class ModuleText(msgspec.Struct, frozen=True, kw_only=True):
    """Load this module: a .py file or a name; `text`: its source, where it was read before."""

    module: str
    text: str | None = None


class ModuleLoaded(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The source of a module, and its programs: the fields of each but function and process."""

    text: str
    programs: tuple[dict[str, Any], ...]


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


class ProgramAsks(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The next round of a program: the fields of each step, by the name of its class."""

    steps: tuple[tuple[str, dict[str, Any]], ...]
    is_list: bool


class ProgramFails(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A `WorkflowError`."""

    message: str
    kind: str


ToChild: TypeAlias = ModuleText | ProgramCall
FromChild: TypeAlias = ModuleLoaded | ModuleRefused | ProgramAsks | ProgramFails


def packed(message: ToChild | FromChild) -> bytes:
    """Encodes a message. Raises `ValueError` for one that is too large."""
    content = _encoder.encode(message)
    if len(content) > MESSAGE_BYTES_MAX:
        raise ValueError(f"{len(content)} bytes, and at most {MESSAGE_BYTES_MAX} are allowed")
    return content


def from_child(content: bytes) -> FromChild:
    """Decodes what a child said. Raises `msgspec.DecodeError`."""
    return _decoder.decode(content)


def asks_of(asked: NextSteps) -> ProgramAsks:
    """Returns the message of a round."""
    steps = tuple((type(step).__name__, _fields(step)) for step in asked.steps)
    return ProgramAsks(steps=steps, is_list=asked.is_list)


def next_steps(asks: ProgramAsks, done: int) -> NextSteps:
    """Returns the round of a message, checked. Raises `WorkflowError`. `done`: finished steps."""
    kinds = {kind.__name__: kind for kind in (Retrieve, Generate, AnswerStep)}
    try:
        steps = [kinds[name](**of.pop("values", {}), **of) for name, of in asks.steps]
        return checked_steps(steps if asks.is_list else steps[0], done)
    except (IndexError, KeyError, TypeError) as error:
        raise WorkflowError(f"it asks for what is no step: {error!r}") from None


def _fields(step: Retrieve | Generate) -> dict[str, Any]:
    found = {each.name: getattr(step, each.name) for each in fields(step)}
    if isinstance(step, Generate):
        found["values"] = {name: _value_of(value) for name, value in step.values.items()}
    return found


def _value_of(value: Any) -> Any:
    if isinstance(value, Said):
        return msgspec.msgpack.Ext(SAID, _encoder.encode((value.text, value.tokens, value.is_cut)))
    if isinstance(value, Found) or is_passages(value):
        return msgspec.msgpack.Ext(FOUND, _encoder.encode(tuple(value)))
    return value if isinstance(value, str | int | float) else list(map(_value_of, value))


def _unpacked(code: int, data: memoryview) -> Found | Said:
    if code == FOUND:
        return Found(msgspec.msgpack.decode(data, type=tuple[Hit, ...]))
    return Said(*msgspec.msgpack.decode(data, type=tuple[str, int, bool]))


_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[FromChild] = msgspec.msgpack.Decoder(
    FromChild, ext_hook=_unpacked
)
