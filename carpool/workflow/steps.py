"""What programs yield and get: steps, and their results. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any, ClassVar, TypeAlias

import msgspec

from schemas.hit import Hit
from schemas.workflow import SEARCH_CHARS_MAX

DIGEST_BYTES = 8

_encoder = msgspec.json.Encoder(order="deterministic")


class WorkflowError(Exception):
    """A program or a step that cannot go on; the message names the step and the cause.

    `kind`: `workflow_failed`; `workflow_changed`: the program is not the one that began;
    `workflow_limit`: the workflow may take no more steps, tokens or bytes.
    """

    def __init__(self, message: str, kind: str = "workflow_failed") -> None:
        super().__init__(message)
        self.kind = kind


class Found(Sequence[Hit]):
    """The passages that a search found, best first. A sequence."""

    def __init__(self, hits: Sequence[Hit] = ()) -> None:
        self._hits = tuple(hits)

    def __getitem__(self, at):  # type: ignore[no-untyped-def]
        return Found(self._hits[at]) if isinstance(at, slice) else self._hits[at]

    def __len__(self) -> int:
        return len(self._hits)

    def __iter__(self) -> Iterator[Hit]:
        return iter(self._hits)

    def __str__(self) -> str:
        """Returns the passages as a prompt shows them."""
        each = enumerate(self._hits, start=1)
        return "\n\n".join(f"[{number}] {hit.title}: {hit.text}" for number, hit in each)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Found) and self._hits == other._hits

    def __hash__(self) -> int:
        return hash(self._hits)

    def __add__(self, other: Sequence[Hit]) -> Found:
        """Returns the passages of both, each once: those of `self` first."""
        ours = {hit.doc_id: hit for hit in self._hits}
        theirs = {hit.doc_id: hit for hit in other if hit.doc_id not in ours}
        return Found((*ours.values(), *theirs.values()))


@dataclass(frozen=True, slots=True)
class Said:
    """A text of the model. `tokens` counts what it wrote; `is_cut`: it ended at `max_tokens`."""

    text: str
    tokens: int = 0
    is_cut: bool = False

    def __str__(self) -> str:
        return self.text


Value: TypeAlias = (
    str | int | float | Said | Sequence[Hit] | Sequence[str] | Sequence[Sequence[str]]
)
"""What fills a placeholder of a template: a text, passages, or a list of texts or of rows."""
Result: TypeAlias = Found | Said


@dataclass(frozen=True, slots=True)
class Retrieve:
    """Searches the passages that are nearest to `text`. Its result is `Found`.

    `top_k`: None is the query's own, else the default of the searcher.
    """

    text: Any
    top_k: Any = None

    def check(self) -> None:
        """Raises `WorkflowError` that says what is wrong."""
        if not isinstance(self.text, str) or not self.text.strip():
            raise WorkflowError(f"Retrieve needs a text that is not blank, not {self.text!r}")
        if len(self.text) > SEARCH_CHARS_MAX or "\x00" in self.text:
            raise WorkflowError(
                f"Retrieve takes at most {SEARCH_CHARS_MAX} characters, without NUL; this text has "
                f"{len(self.text)}"
            )
        if self.top_k is not None and not (_is_int(self.top_k) and 1 <= self.top_k <= 100):
            raise WorkflowError(f"Retrieve takes a top_k from 1 to 100, not {self.top_k!r}")

    def digest(self) -> str:
        """Returns a digest of the step, the same in every process."""
        return _digest("retrieve", self.text, self.top_k)


@dataclass(frozen=True, slots=True, init=False)
class Generate:
    """Lets the model write a text. Its result is `Said`.

    `template`: the name of a prompt template, whose placeholders `values` fill; or `prompt`: the
    prompt itself, with names in braces. `max_tokens`, `temperature` (0) and `seed` are as in a
    query's `generation`. `passages_max`: the most passages that the prompt shows; None: the
    `generator.passages_max` best of each search.
    """

    template: Any
    prompt: Any
    max_tokens: Any
    temperature: Any
    seed: Any
    passages_max: Any
    values: Mapping[str, Value] = field(hash=False)
    name: ClassVar[str] = "Generate"

    def __init__(
        self,
        template: str = "",
        *,
        prompt: str | None = None,
        max_tokens: int | None = None,
        temperature: float = 0.0,
        seed: int | None = None,
        passages_max: int | None = None,
        **values: Value,
    ) -> None:
        given = (template, prompt, max_tokens, temperature, seed, passages_max)
        for each, value in zip(fields(self), (*given, MappingProxyType(values)), strict=True):
            object.__setattr__(self, each.name, value)

    def check(self) -> None:
        """Raises `WorkflowError` that says what is wrong."""
        name, ours = self.name, (self.template, self.prompt)
        if not isinstance(self.template, str) or bool(self.template) == (self.prompt is not None):
            raise WorkflowError(f"{name} needs either a template or a prompt; it has {ours!r}")
        if self.max_tokens is not None and not (
            _is_int(self.max_tokens) and 1 <= self.max_tokens <= 32_768
        ):
            raise WorkflowError(f"{name} takes max_tokens from 1 to 32768, not {self.max_tokens!r}")
        is_number = isinstance(self.temperature, float) or _is_int(self.temperature)
        if not is_number or not 0 <= self.temperature <= 2:
            raise WorkflowError(f"{name} takes a temperature from 0 to 2, not {self.temperature!r}")
        if self.seed is not None and not _is_int(self.seed):
            raise WorkflowError(f"{name} takes a whole number as seed, not {self.seed!r}")
        if (most := self.passages_max) is not None and not (_is_int(most) and most >= 1):
            raise WorkflowError(f"{name} takes a passages_max of 1 or more, not {most!r}")
        for value_name, value in self.values.items():
            if not _is_value(value):
                what = type(value).__name__
                if isinstance(value, Hit):
                    what = "one passage: give its .text, or a slice such as found[:1]"
                raise WorkflowError(
                    f"{name} takes texts, numbers, passages and lists of texts as values; "
                    f"{value_name} is {what}"
                )

    def digest(self) -> str:
        """Returns a digest of the step, the same in every process."""
        options = [self.template, self.prompt, self.max_tokens, self.temperature, self.seed]
        if self.passages_max is not None:  # else as in journals of earlier versions
            options.append(self.passages_max)
        values = {name: _plain(value) for name, value in self.values.items()}
        return _digest(self.name, *options, values)

    @property
    def passages(self) -> Found:
        """The passages that the prompt has: the value that is passages, or none."""
        found = [value for value in self.values.values() if is_passages(value)]
        return Found(found[0]) if found else Found()  # type: ignore[arg-type]


class AnswerStep(Generate):
    """The end of a program: the model writes the answer, which cites the passages of its prompt.

    Programs call it `Answer`. Without a template, `text` is the answer as it is, with markers such
    as `[1]` of `passages`.
    """

    name: ClassVar[str] = "Answer"

    def check(self) -> None:
        """Raises `WorkflowError` that says what is wrong."""
        if self.is_written and not isinstance(self.values["text"], str | Said):
            raise WorkflowError(f"Answer takes a text, not {type(self.values['text']).__name__}")
        if not self.is_written:
            super().check()
        lists = [name for name, value in self.values.items() if is_passages(value)]
        if len(lists) > 1:
            raise WorkflowError(
                f"Answer cites one list of passages, and it has {', '.join(lists)}: add them up"
            )

    @property
    def is_written(self) -> bool:
        """Whether the answer is a text that was written before."""
        return not self.template and self.prompt is None and "text" in self.values

    @property
    def written(self) -> Said:
        """The text that was written before, of an answer that is one."""
        text = self.values["text"]
        return text if isinstance(text, Said) else Said(str(text))


Step: TypeAlias = Retrieve | Generate


def is_passages(value: object) -> bool:
    """Returns whether a value is passages; an empty list is not."""
    return isinstance(value, Found) or (
        isinstance(value, Sequence) and bool(value) and all(isinstance(one, Hit) for one in value)
    )


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_value(value: object) -> bool:
    if isinstance(value, str | int | float | Said) or is_passages(value):
        return True
    return isinstance(value, Sequence) and all(
        isinstance(row, str | Said)
        or (isinstance(row, Sequence) and all(isinstance(one, str | Said) for one in row))
        for row in value
    )


def _plain(value: Value) -> object:
    if isinstance(value, Said):
        return value.text
    if isinstance(value, str | int | float):
        return value
    return [one.doc_id if isinstance(one, Hit) else _plain(one) for one in value]


def _digest(*parts: object) -> str:
    return hashlib.blake2b(_encoder.encode(parts), digest_size=DIGEST_BYTES).hexdigest()
