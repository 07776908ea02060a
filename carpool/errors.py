"""Errors sorted by what the handler must do. Each message: what happened, what it means, what to
do.
"""

from __future__ import annotations

from schemas.errors import RecordError

__all__ = [
    "AbortedError",
    "CarpoolError",
    "ConfigError",
    "CorruptionError",
    "DeploymentError",
    "FencedError",
    "RecordError",
    "RetryableError",
]


class CarpoolError(Exception):
    """The base of what Carpool raises on purpose; the command line prints it without a
    traceback.
    """


class RetryableError(CarpoolError):
    """The same call may go through later (a server that refuses or cannot be reached): pause, and
    try again.
    """

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class ConfigError(CarpoolError):
    """A setting, file or model does not fit: stop at start and say what to change."""


class DeploymentError(CarpoolError):
    """An internal record that this build cannot read: stop consuming and be not ready, never
    dead-letter good work.
    """


class FencedError(CarpoolError):
    """Another member took our place: leave and join again."""


class AbortedError(CarpoolError):
    """A transaction will not be seen: end it with an abort and send its work again, from memory."""


class CorruptionError(CarpoolError):
    """Stored bytes are damaged; `path` and `offset_bytes` say where. Never scored; the rest goes
    on.
    """

    def __init__(self, message: str, *, path: str, offset_bytes: int | None = None) -> None:
        super().__init__(message)
        self.path = path
        self.offset_bytes = offset_bytes
