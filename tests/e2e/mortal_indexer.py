"""An indexer that is killed inside a transaction, once the file MORTAL_FILE is there."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from carpool.kafka.clients import Membership, Position
from carpool.kafka.librdkafka import LibrdkafkaTransactionalProducer
from carpool.kafka.records import TopicPartition
from cli.main import main


class MortalProducer(LibrdkafkaTransactionalProducer):
    """Dies after records and offsets were written, before the commit."""

    def send_offsets(
        self, offsets: Mapping[TopicPartition, Position], membership: Membership
    ) -> None:
        super().send_offsets(offsets, membership)
        with suppress(FileNotFoundError):
            Path(os.environ["MORTAL_FILE"]).unlink()
            os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    from carpool import run_service

    run_service.LibrdkafkaTransactionalProducer = MortalProducer  # type: ignore[misc]
    sys.argv = ["carpool", "indexer"]
    main()
