"""Batches of `/v1/batches`: which one is run by this gateway, and what it leaves in the log."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import structlog
from msgspec.structs import replace

from carpool.errors import CarpoolError
from gateway.batch_job import BatchJob, BatchParts, Ended
from gateway.files import PIECE_BYTES
from producers.batch.claim import DEAD_S
from schemas.batch import Batch, BatchFile, BatchOptions, BatchRequest
from schemas.files import StoredFile

log = structlog.get_logger()

JOBS_MAX = 4
LOOK_S = 0.5
AGAIN_S = 15.0
"""Pause after a batch could not go on."""
STANDS_STILL_S = 2.0
"""How long a batch has no runner before another gateway than that of its request takes it."""


class Batches:
    """The batches at work here, at most `JOBS_MAX`. For one event loop.

    A gateway takes a batch that nobody works on, or whose runner gave no sign for `DEAD_S`. Where
    two take it, the log decides (`Claim`), and questions have the same ids.
    """

    def __init__(self, parts: BatchParts) -> None:
        self._parts = parts
        self._ledger = parts.ledger
        self._jobs: dict[str, tuple[BatchJob, asyncio.Task[None]]] = {}
        self._not_before_s: dict[str, float] = {}
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
            options=BatchOptions(tenant=request.owner),
            request=request,
            state="stopped",
            starts=(),
            created_ms=now_ms,
            updated_ms=now_ms,
        )
        self._not_before_s[batch_id] = 0.0
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
        """Takes batches until it is cancelled."""
        while True:
            self._look()
            await asyncio.sleep(LOOK_S)

    async def close(self) -> None:
        """Stops the jobs; their batches stay open in the log."""
        jobs = [*self._jobs.values()]
        for job, _ in jobs:
            job.stop()
        await asyncio.gather(*(task for _, task in jobs), return_exceptions=True)
        self._threads.shutdown()

    def _look(self) -> None:
        """Begins jobs; the owner with the fewest goes first, then the oldest batch."""
        while len(self._jobs) < JOBS_MAX:
            at_work = Counter(job.owner for job, _ in self._jobs.values())
            due = [
                (at_work[request.owner], batch.created_ms, batch.batch_id, batch, request)
                for batch in [*self._ledger.batches.values()]
                if (request := batch.request) is not None and self._is_due(batch, request)
            ]
            if not due:
                return
            *_, name, batch, request = min(due)
            job = BatchJob(self._parts, batch, request)
            self._jobs[name] = job, asyncio.create_task(self._run(batch, job))

    def _is_due(self, batch: Batch, request: BatchRequest) -> bool:
        name = batch.batch_id
        if name in self._jobs or request.ended or not self._parts.spent(request.owner, 0.0):
            return False
        is_ending = batch.state in ("done", "cancelled")  # its runner stores the files
        wait_s = DEAD_S if batch.runner or is_ending else STANDS_STILL_S
        since_s = self._ledger.changed_s[name] + wait_s + random.Random(name).random()
        return time.monotonic() >= self._not_before_s.get(name, since_s)

    async def _run(self, batch: Batch, job: BatchJob) -> None:
        name = batch.batch_id
        self._not_before_s.pop(name, None)
        try:
            ended = await asyncio.get_running_loop().run_in_executor(self._threads, job.work)
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
        await self._ledger.write_batch(
            replace(newest, request=request, runner=None, updated_ms=request.ended_ms)
        )

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
