"""`carpool dlq`: which records could not be used, why, and what is done about them."""

from cli.dlq.commands import app

__all__ = ["app"]
