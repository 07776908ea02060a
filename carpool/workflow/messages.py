"""What a service and the child process of a module say to each other. Pure.

A message is MessagePack. The service sends a `ModuleText`, then each `RunRequest`; the child
answers each message. What a child says is data: every step is checked and digested again.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any, TypeAlias

import msgspec
from msgspec.msgpack import Decoder

from carpool.workflow.program import NextSteps, RunRequest
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


class ProgramAsks(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The next round of a program: the fields of each step, by the name of its class."""

    steps: tuple[tuple[str, dict[str, Any]], ...]
    is_list: bool


class Failed(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Why a module cannot be loaded, or a program cannot go on. `kind` is a `WorkflowError`'s."""

    message: str
    kind: str = "workflow_failed"


Message: TypeAlias = ModuleText | ModuleLoaded | RunRequest | ProgramAsks | Failed


def packed(message: Message) -> bytes:
    """Encodes a message. Raises `ValueError` for one that is too large."""
    content = _encoder.encode(message)
    if len(content) > MESSAGE_BYTES_MAX:
        raise ValueError(f"{len(content)} bytes, and at most {MESSAGE_BYTES_MAX} are allowed")
    return content


def asks_of(asked: NextSteps) -> ProgramAsks:
    """Returns the message of a round."""
    steps = tuple((type(step).__name__, _fields(step)) for step in asked.steps)
    return ProgramAsks(steps=steps, is_list=asked.is_list)


def next_steps(asks: ProgramAsks) -> NextSteps:
    """Returns the round of a message, checked. Raises `WorkflowError`."""
    kinds = {kind.__name__: kind for kind in (Retrieve, Generate, AnswerStep)}
    try:
        steps = [kinds[name](**of.pop("values", {}), **of) for name, of in asks.steps]
        return checked_steps(steps if asks.is_list else steps[0])
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
OF_MODULE: Decoder[ModuleLoaded | Failed] = Decoder(ModuleLoaded | Failed)
OF_PROGRAM: Decoder[ProgramAsks | Failed] = Decoder(ProgramAsks | Failed, ext_hook=_unpacked)
"""What a child answers to a `ModuleText`, and to a `RunRequest`."""
