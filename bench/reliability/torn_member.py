"""A member of `carpool bench torn`: copies one topic exactly once, until it is killed.

Its one argument is a `Member` as JSON. It imports everything, says so on standard output, and joins
its group when a line comes on standard input.
"""

from __future__ import annotations

import sys

import msgspec
import structlog

from bench.core.copy_loop import CopyLoop
from carpool.kafka.settings import KafkaSettings
from carpool.terminal import print_plain

IN_FLIGHT = 50


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """Where a member copies, and under which name."""

    bootstrap: str
    group: str
    source: str
    instance_id: str


def main(argument: str) -> None:
    """Waits for a line, then copies for ever."""
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    member = msgspec.json.decode(argument, type=Member)
    settings = KafkaSettings(bootstrap=member.bootstrap, instance_id=member.instance_id)
    loop = CopyLoop(
        settings,
        delivery="exactly_once",
        group=member.group,
        source=member.source,
        in_flight=IN_FLIGHT,
    )
    print_plain("ready")
    sys.stdin.readline()
    loop.run()


if __name__ == "__main__":
    main(sys.argv[1])
