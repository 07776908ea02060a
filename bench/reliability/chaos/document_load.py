"""The documents of a run: put, replaced, deleted, and asked for, all the time, by one client."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

from bench.data.made_up import NLIST
from bench.reliability.chaos.check_answer import TOP_K
from bench.reliability.chaos.document_texts import DOCUMENTS, asked_of, key_of, texts_of
from bench.reliability.chaos.document_truth import Acknowledged
from bench.reliability.chaos.questions import ChaosQuestion
from carpool.clock import SystemClock
from carpool.errors import CarpoolError
from carpool.kafka.settings import KafkaSettings
from producers.client import Client
from producers.corpus.save import save_base
from producers.documents import Put
from producers.settings import ClientSettings
from schemas.query import FETCH_MAX

AUTHORS = 8
"""Each changes documents of its own, one after the other."""
DELETE_SHARE, BAD_SHARE, ASK_SHARE, FETCH_SHARE = 0.15, 0.05, 0.2, 0.25
"""Of the changes; of these, changes that are asked for; of these, those that are fetched."""
ASKS_MAX = 64
PATIENCE_S = 1_100.0
"""For the end of a publish or of an answer: longer than a run."""
SAVE_EACH_S = 20.0
"""How long after a base the next one is asked for; more are saved when memory is full."""
FETCH_TRIES = 5
OTHER_MODEL: dict[str, Any] = {"vector": [1.0], "embedding_model": "another"}
"""What makes a passage be refused."""


class DocumentLoad(threading.Thread):
    """Changes documents for `duration_s`, and asks for what was changed: `changed` and `asked`."""

    def __init__(
        self, kafka: KafkaSettings, rate_per_s: float, duration_s: float, seed: int
    ) -> None:
        """`rate_per_s`: 0: there are no documents."""
        super().__init__(name="documents", daemon=True)
        self._kafka = kafka
        self._settings = ClientSettings(publish_timeout_ms=int(PATIENCE_S * 1_000))
        self._pause_s = AUTHORS / rate_per_s if rate_per_s else 0.0
        self._duration_s = duration_s if rate_per_s else 0.0
        self._seed = seed
        self._revisions = [0] * DOCUMENTS
        self._asks = set[asyncio.Task[bool]]()
        self._ending = threading.Event()
        self._is_written = False
        self.changed: list[Acknowledged] = []
        self.asked: list[ChaosQuestion] = []

    @property
    def is_writing(self) -> bool:
        """Whether more changes come."""
        return self.is_alive() and not self._is_written

    def run(self) -> None:
        if self._duration_s:
            threading.Thread(target=self._save, name="saves", daemon=True).start()
            asyncio.run(self._write())

    def end(self) -> None:
        """Waits for no more answers. Raises `CarpoolError` where not all was changed."""
        self._ending.set()
        self.join()
        if self._duration_s and not self._is_written:
            raise CarpoolError("the changes of documents ended with an error")

    def fetch_all(self) -> None:
        """Fetches every document, as it is after all changes. Blocks."""
        if self._duration_s:
            asyncio.run(self._fetch_all())

    def _save(self) -> None:
        """Asks for bases."""
        while not self._ending.wait(SAVE_EACH_S):
            with suppress(CarpoolError):
                save_base(self._kafka, ClientSettings(), SystemClock(), print, self._ending.is_set)

    async def _write(self) -> None:
        until_s = time.monotonic() + self._duration_s
        async with Client(kafka=self._kafka, settings=self._settings) as client:
            await asyncio.gather(*(self._author(client, n, until_s) for n in range(AUTHORS)))
            self._is_written = True
            while not await asyncio.to_thread(self._ending.wait, 1.0):
                pass
            for ask in self._asks:
                ask.cancel()

    async def _author(self, client: Client, first: int, until_s: float) -> None:
        rng = random.Random(f"{self._seed} {first}")
        while time.monotonic() < until_s:
            number = rng.randrange(first, DOCUMENTS, AUTHORS)
            put = await self._change(client, number, rng.random())
            if rng.random() < ASK_SHARE and len(self._asks) < ASKS_MAX:
                fetch = [key_of(number).shown] if rng.random() < FETCH_SHARE else []
                ask = asyncio.create_task(self._ask(client, [put], asked_of(number), fetch))
                self._asks.add(ask)
                ask.add_done_callback(self._asks.discard)
            await asyncio.sleep(rng.expovariate(1 / self._pause_s))

    async def _change(self, client: Client, number: int, drawn: float) -> Put:
        """Changes a document as it was drawn."""
        key, is_delete = key_of(number), drawn < DELETE_SHARE
        if is_delete:
            put = await client.delete(key.id, owner=key.owner)
        else:
            self._revisions[number] += 1
            revision = self._revisions[number]
            texts: list[Any] = texts_of(number, revision)
            if drawn < DELETE_SHARE + BAD_SHARE:
                texts[0] = {"text": texts[0], **OTHER_MODEL}
            own = {"title": f"Document {number}", "owner": key.owner}
            put = await client.put(key.id, passages=texts, metadata={"revision": revision}, **own)
        self.changed.append(Acknowledged(key, put, is_delete))
        return put

    async def _fetch_all(self) -> None:
        puts = sorted((put for _, put, _ in self.changed), key=lambda put: put.offset)
        last = {put.partition: put for put in puts}.values()
        names = [key_of(number).shown for number in range(DOCUMENTS)]
        async with Client(kafka=self._kafka, settings=self._settings) as client:
            for first in range(0, DOCUMENTS, FETCH_MAX):
                for _ in range(FETCH_TRIES):  # a searcher that was started may be late
                    if await self._ask(client, last, "", names[first : first + FETCH_MAX]):
                        break

    async def _ask(
        self, client: Client, after: Iterable[Put], text: str, fetch: Sequence[str]
    ) -> bool:
        """Asks for a text, or fetches; the audit judges the answer. Returns whether it was `ok`."""
        question = ChaosQuestion(
            id=f"d-{len(self.asked):06}",
            text=text,
            is_live=True,
            bound={put.partition: put.offset for put in after},
            fetch=tuple(fetch),
        )
        self.asked.append(question)
        what: dict[str, Any] = {"query_id": question.id, "after": after, "timeout_s": PATIENCE_S}
        what |= {"fetch": fetch} if fetch else {"text": text, "top_k": TOP_K, "nprobe": NLIST}
        with suppress(CarpoolError):
            return (await client.ask(**what)).status == "ok"
        return False
