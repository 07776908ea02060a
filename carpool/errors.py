"""Errors by what the handler must do. A message says what happened and what to do."""

from __future__ import annotations

from schemas.errors import RecordError as RecordError


class CarpoolError(Exception):
    """The base of expected errors; the command line prints them without a traceback."""


class RetryableError(CarpoolError):
    """The failure passes by itself (a server is busy): pause, then make the same call."""


class ConfigError(CarpoolError):
    """A setting, file or model does not fit: stop at start and say what to change."""


class DeploymentError(CarpoolError):
    """The brokers refuse what they are given, or an internal record is unreadable: not ready.

    A refusal is tried again after a pause. Good work never goes to the dead letters for it.
    """


class FencedError(CarpoolError):
    """Another member has this member's place: leave and join again."""


class AbortedError(CarpoolError):
    """A transaction will not commit: abort it and send its work again from memory."""


class CorruptionError(CarpoolError):
    """Stored bytes are damaged, at `path` and `offset_bytes`: skip them, never score them."""

    def __init__(self, message: str, *, path: str, offset_bytes: int | None = None) -> None:
        super().__init__(message)
        self.path = path
        self.offset_bytes = offset_bytes


ReadError = CorruptionError | RetryableError
"""Why bytes were not read: damaged, or the disk."""
