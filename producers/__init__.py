"""How do questions enter, and how do answers come back? A client, and a load generator.

*Invariant:* this package imports no service, and nothing that the base install lacks. *Invariant:*
an `ask` ends with its own answer, or with an error that says what to do. Absent on purpose: retries
of questions (the caller retries), and a queue (the topic is the queue).
"""

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
