"""Headers as confluent-kafka gives them, which it cannot always: Kafka's header names are bytes,
and its own are text.
"""

from __future__ import annotations

from operator import methodcaller
from typing import Any

from confluent_kafka import Message as RawMessage

from schemas.headers import UNREADABLE_HEADERS
from schemas.record import Headers

_ask = methodcaller("headers")
"""The client returns a broken list *and* sets an error. Python's specialised calls, which a line
that runs often becomes, do not look: the error comes up anywhere later. This way of calling always
looks.
"""


def headers_of(raw: RawMessage) -> Headers:
    """Returns the headers of a record. Where a name is not UTF-8 the client gives none of them, and
    raises: then the one header that says so, by which readers refuse the record.
    """
    try:
        found: Any = _ask(raw) or ()
    except (SystemError, UnicodeDecodeError):
        return ((UNREADABLE_HEADERS, None),)
    return tuple(
        (name, value.encode() if isinstance(value, str) else value) for name, value in found
    )
