"""How do questions enter, and how do answers come back? A client."""

from producers.client import Client
from producers.errors import AnswerFailed, AnswerTimeout, PublishError, raise_for_status
from schemas.errors import RecordError

__all__ = [
    "AnswerFailed",
    "AnswerTimeout",
    "Client",
    "PublishError",
    "RecordError",
    "raise_for_status",
]
