"""The answer ledger in front of a stage, with logs of answers in memory."""

from __future__ import annotations

from typing import Any

import msgspec

from carpool.loop.stage import Unit
from schemas.retrieval import Retrieval
from tests.generator.stage import unit


def again(first: Unit[Retrieval], **query: Any) -> Unit[Retrieval]:
    """Another record with the id of `first`, and other headers."""
    another = unit(
        first.record.query.text, query={"query_id": first.record.query.query_id, **query}
    )
    headers = (("correlation_id", str(another.id).encode()), ("traceparent", b"00-2"))
    return Unit(
        id=another.id,
        record=msgspec.structs.replace(another.record, headers=headers),
        message=another.message,
    )
