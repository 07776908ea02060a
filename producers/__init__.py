"""How do questions enter, and how do answers come back? A client that publishes, asks and waits,
and a load generator.

*Invariant:* this package imports no service, and nothing that the base install lacks. *Invariant:*
an `ask` ends: with its own answer, or with an error that says what to do. Absent on purpose:
retries of questions (asking again is a new try, and the caller's to make), a queue of our own (the
log is the queue).
"""

from producers.client import Client
from producers.errors import (
    AnswerFailed,
    AnswerTimeout,
    PublishError,
    RecordTooLarge,
    raise_for_status,
)

__all__ = [
    "AnswerFailed",
    "AnswerTimeout",
    "Client",
    "PublishError",
    "RecordTooLarge",
    "raise_for_status",
]
