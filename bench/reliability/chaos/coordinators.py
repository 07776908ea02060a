"""Asks coordinators and leaders of partitions whether a transaction blocks its readers."""

from __future__ import annotations

from kafka.admin import TransactionState

from carpool.kafka.coordinator import CoordinatorClient


class CoordinatorsAndLeaders(CoordinatorClient):
    """A `CoordinatorClient` that also asks the leaders."""

    def is_open(self, transactional_id: str, *, with_records: bool) -> bool:
        """Whether a transaction is open. Blocks and raises as `unfinished` does.

        `with_records`: and has a record or an offset in a log: until then it blocks no reader.
        """
        about = self._describe(transactional_id)
        is_open = about is not None and about.state is TransactionState.ONGOING
        if not (is_open and with_records):
            return is_open
        logs = self._ask(
            f"transactional id {transactional_id}",
            lambda client: client.describe_producers(list(about.topic_partitions)),
        )
        return any(
            each.producer_id == about.producer_id and each.current_transaction_start_offset >= 0
            for log in logs.values()
            for each in log.active_producers
        )
