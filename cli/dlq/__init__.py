"""`carpool dlq`: list, show, replay and drop the records that could not be used."""

from cli.dlq.commands import app

__all__ = ["app"]
