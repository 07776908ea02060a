"""What is wrong with a record: one error type, so that every reader refuses bad input in the same
words.
"""

from __future__ import annotations

from typing import Literal, get_args

Reason = Literal[
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
"""Why a record was refused: the label of metrics, and `error.type` of a `failed` answer. A closed
list.
"""

REASONS: tuple[Reason, ...] = get_args(Reason)


class RecordError(ValueError):
    """One record is bad: it goes to the dead letters with this reason, and the records around it go
    on.

    `reason` is one of `REASONS`, `field` the JSON path of the field that is wrong (None: the record
    as a whole), and `query_id` the id to answer to, where one could be read.
    """

    def __init__(
        self, reason: Reason, message: str, *, field: str | None = None, query_id: str | None = None
    ) -> None:
        super().__init__(message)
        self.reason: Reason = reason
        self.field = field
        self.query_id = query_id
