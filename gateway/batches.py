"""Batches of `/v1/batches`: which one is run by this gateway, and what it leaves in the log."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import structlog
from msgspec.structs import replace

from carpool.errors import CarpoolError
from gateway.batch_job import BatchJob, BatchParts, Ended
from gateway.files import PIECE_BYTES
from gateway.plan.batches import why_it_ends
from producers.batch.batch_log import batch_record
from producers.batch.claim import ALIVE_S, DEAD_S
from schemas.batch import Batch, BatchFile, BatchOptions, BatchRequest
from schemas.files import StoredFile

log = structlog.get_logger()

JOBS_MAX = 4
LOOK_S = 0.5
AGAIN_S = 15.0
"""Pause after a batch could not go on."""


class Batches:
    """The batches at work here, at most `JOBS_MAX`. For one event loop.

    A gateway takes the batches of its own requests, and those whose last record is older than
    `DEAD_S`. Where two take one, the log decides (`Claim`), and questions have the same ids.
    """

    def __init__(self, parts: BatchParts, models: Sequence[str]) -> None:
        """`models`: the names that a line may give."""
        self._parts, self._models = parts, tuple(models)
        self._ledger = parts.ledger
        self._jobs: dict[str, tuple[BatchJob, asyncio.Task[None]]] = {}
        self._not_before_s: dict[str, float] = {}
        self._fresh = set[str]()
        """Batches of requests to this gateway, which nobody has begun."""
        self._threads = ThreadPoolExecutor(JOBS_MAX, thread_name_prefix="carpool-batch")

    async def create(self, batch_id: str, request: BatchRequest, file: StoredFile) -> Batch:
        """Writes a new batch, and takes it. Raises `PublishError`."""
        now_ms = self._parts.clock.now_us() // 1_000
        batch = Batch(
            batch_id=batch_id,
            file=BatchFile(
                name=file.name,
                sha256=file.sha256,
                size_bytes=file.size_bytes,
                lines=0,
                questions=0,
            ),
            options=BatchOptions(tenant=request.owner, models=self._models),
            request=request,
            state="stopped",
            starts=(),
            created_ms=now_ms,
            updated_ms=now_ms,
        )
        self._fresh.add(batch_id)
        await self._ledger.write_batch(batch)
        self._look()
        return batch

    async def cancel(self, batch: Batch, request: BatchRequest) -> Batch:
        """Writes that a batch is cancelled; its runner, or the next one, follows."""
        now_ms = self._parts.clock.now_us() // 1_000
        cancelled = replace(batch, request=replace(request, is_cancelled=True), updated_ms=now_ms)
        await self._ledger.write_batch(cancelled)
        return cancelled

    async def watch(self) -> None:
        """Takes batches, and says that they are at work, until it is cancelled."""
        while True:
            try:
                self._look()
                await self._tell()
            except Exception:
                log.exception("batches cannot be taken; trying again")
            await asyncio.sleep(LOOK_S)

    async def _tell(self) -> None:
        """Writes records, so that no other gateway takes a batch whose runner writes none now.

        Writes the end of a batch again, where an older record of its runner came after it.
        """
        for name in [*self._jobs]:
            batch = self._ledger.batches[name]
            is_ended = batch.request is None or batch.request.ended
            if not is_ended and time.monotonic() - self._ledger.changed_s[name] > ALIVE_S:
                now_ms = self._parts.clock.now_us() // 1_000
                await self._ledger.write_batch(replace(batch, updated_ms=now_ms))
        while self._ledger.undone:
            await self._ledger.write_batch(self._ledger.batches[self._ledger.undone.pop()])

    async def close(self) -> None:
        """Stops the jobs; their batches stay open in the log."""
        jobs = [*self._jobs.values()]
        for job, _ in jobs:
            job.stop()
        await asyncio.gather(*(task for _, task in jobs), return_exceptions=True)
        self._threads.shutdown()

    def _look(self) -> None:
        """Begins jobs; the owner with the fewest goes first, then the oldest batch.

        Where none is free, one of an owner with two more than another one's is stopped for it.
        """
        while True:
            at_work = Counter(job.owner for job, _ in self._jobs.values())
            due = [
                (at_work[request.owner], batch.created_ms, batch.batch_id, batch, request)
                for batch in [*self._ledger.batches.values()]
                if (request := batch.request) is not None and self._is_due(batch, request)
            ]
            if not due:
                return
            fewest, *_, name, batch, request = min(due)
            if len(self._jobs) >= JOBS_MAX:
                ((owner, most),) = at_work.most_common(1)
                if most >= fewest + 2:
                    [job for job, _ in self._jobs.values() if job.owner == owner][-1].stop()
                return
            self._fresh.discard(name)
            job = BatchJob(self._parts, batch, request)
            self._jobs[name] = job, asyncio.create_task(self._run(batch, job))

    def _is_due(self, batch: Batch, request: BatchRequest) -> bool:
        name = batch.batch_id
        if name in self._jobs or request.ended:
            return False
        if name in self._fresh and batch.runner is None:
            since_s = 0.0
        else:
            since_s = self._ledger.changed_s[name] + DEAD_S + random.Random(name).random()
        if time.monotonic() < max(since_s, self._not_before_s.get(name, 0.0)):
            return False
        ends = why_it_ends(batch, request, self._parts.clock.now_us() // 1_000) is not None
        return ends or self._parts.spent(request.owner, 0.0)

    async def _run(self, batch: Batch, job: BatchJob) -> None:
        name = batch.batch_id
        try:
            ended = await asyncio.get_running_loop().run_in_executor(self._threads, job.work)
            self._not_before_s.pop(name, None)
            if ended is not None:
                await self._end(batch, ended)
        except CarpoolError as error:
            log.warning("a batch waits", batch=name, error=str(error), seconds=AGAIN_S)
            self._not_before_s[name] = time.monotonic() + AGAIN_S
        except Exception:
            log.exception("a batch failed; it is tried again", batch=name, seconds=AGAIN_S)
            self._not_before_s[name] = time.monotonic() + AGAIN_S
        finally:
            job.close()
            del self._jobs[name]

    async def _end(self, batch: Batch, ended: Ended) -> None:
        """Stores the files of a batch, and writes that it has ended. Raises `PublishError`."""
        request = replace(
            ended.request,
            ended_ms=self._parts.clock.now_us() // 1_000,
            output_file_id=await self._store(batch, "output", ended.answers),
            error_file_id=await self._store(batch, "error", ended.errors),
        )
        newest = self._ledger.batches.get(batch.batch_id, batch)
        if newest.request is not None and newest.request.ended is None:
            made = replace(newest, request=request, runner=None, updated_ms=request.ended_ms)
            await self._ledger.publish(batch_record(made, self._parts.clock.now_us()))

    async def _store(self, batch: Batch, what: str, path: Path | None) -> str | None:
        """Returns the id of a stored file: the same, whoever stores it."""
        if path is None or batch.request is None:
            return None

        async def chunks() -> AsyncIterator[bytes]:
            with path.open("rb") as file:
                while chunk := file.read(PIECE_BYTES):
                    yield chunk

        file_id, name = f"file-{batch.batch_id}-{what}", f"{batch.batch_id}_{what}.jsonl"
        owner = batch.request.owner
        await self._parts.files.store(
            chunks(), owner=owner, name=name, purpose="batch_output", file_id=file_id
        )
        return file_id
