"""The error of a bad record, the same for every reader."""

from __future__ import annotations

from typing import Literal, get_args

Reason = Literal[
    "unreadable",
    "empty",
    "too_large",
    "invalid_utf8",
    "not_json",
    "bad_envelope",
    "unknown_version",
    "wrong_type",
    "missing_field",
    "invalid_value",
    "unsupported",
    "wrong_dimension",
    "wrong_model",
    "processing_failed",
]
"""Why a record was refused: the label of metrics, and `error.type` of a `failed` answer."""

REASONS: tuple[Reason, ...] = get_args(Reason)


class RecordError(ValueError):
    """One record is bad: it becomes a dead letter, and other records are processed.

    `field`: the JSON path of the bad field (None: the whole record). `query_id`: if one could be
    read.
    """

    def __init__(
        self, reason: Reason, message: str, *, field: str | None = None, query_id: str | None = None
    ) -> None:
        super().__init__(message)
        self.reason: Reason = reason
        self.field = field
        self.query_id = query_id


def refusal_of(message: str) -> RecordError:
    """Returns reason and field of a message such as "Expected `int`, got `str` - at `$.top_k`"."""
    text, _, path = message.partition(" - at `")
    if path.startswith("key` in `"):
        text, path = f"a key: {text}", path.removeprefix("key` in `")
    field = path.rstrip("`") or "$"
    reason: Reason = "invalid_value"
    if "missing required field" in text:
        reason = "missing_field"
        field = f"{field}.{text.rsplit('`', 2)[1]}"
    elif ", got `" in text:
        reason = "wrong_type"
    return RecordError(reason, f"{field}: {text}", field=field)
