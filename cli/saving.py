"""Saves the corpus of `carpool up` at its end, because the embedded broker keeps nothing."""

from __future__ import annotations

import time
from collections.abc import Callable

from rich.console import Console

from carpool.clock import SystemClock
from carpool.errors import CarpoolError
from carpool.kafka.settings import KafkaSettings
from carpool.kafka.topic_reader import TopicReader
from producers.corpus.log import corpus_state
from producers.corpus.save import save_base
from producers.settings import ClientSettings
from schemas.topics import DOCUMENTS

LOOK_S = 0.3


def save_corpus(
    kafka: KafkaSettings, client: ClientSettings, console: Console, is_over: Callable[[], bool]
) -> None:
    """Saves the documents that were put since the start, if any, unless it `is_over`. Blocks."""
    clock = SystemClock()
    try:
        with TopicReader(kafka, clock, name="up-corpus") as reader:
            if not any(reader.bounds(at)[1] for at in reader.partitions(DOCUMENTS.name)):
                return
        console.print("saving the documents of this run (Ctrl-C again: they are lost)")
        while not is_over() and (waiting := corpus_state(kafka, clock)["waiting"]):
            console.print(f"{sum(waiting.values())} documents are not indexed yet", style="dim")
            time.sleep(LOOK_S)
        base = save_base(kafka, client, clock, console.print, is_over)
        if base is not None:
            console.print(f"saved: {base.rows:,} passages, the next `carpool up` begins with them")
    except CarpoolError as error:
        console.print(f"the documents of this run were not saved: {error}", style="red")
