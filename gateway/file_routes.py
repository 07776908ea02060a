"""The routes of files and batches."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager, suppress
from urllib.parse import quote

from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from gateway.batch_job import BatchParts
from gateway.batches import Batches
from gateway.failures import NoAnswer
from gateway.files import PIECE_BYTES, LostFile
from gateway.keys import Key
from gateway.plan.batches import (
    FILE_FIELDS,
    PREFIX,
    batch_object,
    batch_request,
    file_object,
    page,
)
from gateway.plan.objects import Object
from gateway.requests import parsed, query_id_of
from producers.openai.fields import BadRequest, check_fields
from schemas.batch import Batch, BatchRequest
from schemas.files import StoredFile

TRANSFERS_MAX, OF_ONE_MAX = 8, 4
"""Uploads and downloads at a time; those of one owner."""
FILES_SHOWN, BATCHES_SHOWN = 10_000, 20
"""Of a list, by default: as OpenAI's."""
FIELD_BYTES_MAX = 4_096
NAME_CHARS_MAX = 255


class FileRoutes:
    """Files and batches of those who ask: each owner sees its own."""

    def __init__(self, parts: BatchParts, models: Sequence[str]) -> None:
        self._ledger = parts.ledger
        self._files = parts.files
        self._batches = Batches(parts, models)
        self._transfers = Counter[str]()

    def open(self) -> None:
        """Reads what the log has. Blocks. Raises as `Ledger.open`."""
        self._ledger.open()

    async def watch(self) -> None:
        """Runs batches until it is cancelled."""
        await self._batches.watch()

    async def close(self) -> None:
        """Ends the batches at work, and disconnects."""
        await self._batches.close()
        await asyncio.to_thread(self._ledger.close)

    def routes(self) -> list[Route]:
        """Returns the routes."""
        file, batch = "/v1/files/{name}", "/v1/batches/{name}"
        return [
            Route("/v1/files", self._upload, methods=["POST"]),
            Route("/v1/files", self._list_files),
            Route(file, self._file),
            Route(file, self._delete, methods=["DELETE"]),
            Route(f"{file}/content", self._content),
            Route("/v1/batches", self._create, methods=["POST"]),
            Route("/v1/batches", self._list_batches),
            Route(batch, self._batch),
            Route(f"{batch}/cancel", self._cancel, methods=["POST"]),
        ]

    @contextmanager
    def _transfer(self, owner: str) -> Iterator[None]:
        """Counts an upload or a download. Raises `NoAnswer` at the limits."""
        if self._transfers.total() >= TRANSFERS_MAX or self._transfers[owner] >= OF_ONE_MAX:
            why = f"{self._transfers.total()} files are sent at the moment; try again"
            raise NoAnswer(503, why, retryable=True)
        self._transfers[owner] += 1
        try:
            yield
        finally:
            self._transfers[owner] -= 1

    async def _upload(self, request: Request) -> Response:
        with self._transfer(_owner(request)):
            try:
                form = await request.form(
                    max_files=1, max_fields=len(FILE_FIELDS) + 1, max_part_size=FIELD_BYTES_MAX
                )
            except HTTPException as error:
                raise BadRequest(f"the body is no form with a file: {error.detail}") from None
            try:
                # `expires_after[seconds]` is a part of `expires_after`.
                fields = {name.partition("[")[0]: value for name, value in form.multi_items()}
                check_fields(fields, FILE_FIELDS)
                upload, purpose = fields.get("file"), fields.get("purpose")
                if not isinstance(upload, UploadFile):
                    raise BadRequest("file: the form has no file of this name", param="file")
                if purpose != "batch":
                    raise BadRequest("purpose: it is 'batch', and no other", param="purpose")
                stored = await self._files.store(
                    _chunks(upload),
                    owner=_owner(request),
                    name=(upload.filename or "file")[:NAME_CHARS_MAX],
                    purpose="batch",
                )
            finally:
                await form.close()
        return JSONResponse(file_object(stored))

    async def _list_files(self, request: Request) -> Response:
        wanted = request.query_params.get("purpose")
        found = [each for each in self._files.of(_owner(request)) if wanted in (None, each.purpose)]
        shown, has_more = page(found, request.query_params, lambda each: each.file_id, FILES_SHOWN)
        return _list([*map(file_object, shown)], has_more=has_more)

    def _found(self, request: Request, name: str | None = None) -> StoredFile:
        """Returns the file that a request names. Raises `NoAnswer`."""
        name = request.path_params["name"] if name is None else name
        for file in self._files.of(_owner(request)):
            if file.file_id == name:
                return file
        raise NoAnswer(404, f"there is no file {name!r}", retryable=False)

    async def _file(self, request: Request) -> Response:
        return JSONResponse(file_object(self._found(request)))

    async def _delete(self, request: Request) -> Response:
        file = self._found(request)
        for batch in [*self._ledger.batches.values()]:
            asked = batch.request
            if asked is not None and asked.input_file_id == file.file_id and not asked.ended:
                why = f"the batch {PREFIX}{batch.batch_id} still reads it: cancel this first"
                raise NoAnswer(409, why, retryable=False)
        await self._files.delete(file)
        return JSONResponse({"id": file.file_id, "object": "file", "deleted": True})

    async def _content(self, request: Request) -> Response:
        file = self._found(request)
        pieces = self._files.read(file)
        with self._transfer(file.owner):
            try:
                first = await asyncio.to_thread(next, pieces, b"")
            except LostFile as error:
                raise NoAnswer(404, str(error), retryable=False) from None

        async def content() -> AsyncIterator[bytes]:
            with self._transfer(file.owner):
                try:
                    yield first
                    while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
                        yield piece
                finally:
                    with suppress(ValueError):  # a thread still reads the next one
                        await asyncio.to_thread(pieces.close)

        headers = {
            "content-length": str(file.size_bytes),
            "content-disposition": f"attachment; filename*=UTF-8''{quote(file.name, safe='')}",
            "x-content-type-options": "nosniff",
        }
        return StreamingResponse(content(), 200, headers, "application/octet-stream")

    async def _create(self, request: Request) -> Response:
        wanted = batch_request(parsed(await request.body()), _owner(request))
        file = self._found(request, wanted.input_file_id)
        batch_id = query_id_of(request).replace("-", "")
        known = self._ledger.batches.get(batch_id)
        if known is not None and known.request is not None:
            made = known.request
            if (made.input_file_id, made.endpoint) != (wanted.input_file_id, wanted.endpoint):
                why = "Idempotency-Key: another batch was made with this key"
                raise NoAnswer(409, why, retryable=False)
            return JSONResponse(batch_object(known, made))
        return _shown(await self._batches.create(batch_id, wanted, file))

    async def _list_batches(self, request: Request) -> Response:
        owner = _owner(request)
        found = [
            batch
            for batch in [*self._ledger.batches.values()]
            if batch.request is not None and batch.request.owner == owner
        ]
        found.sort(key=lambda batch: batch.created_ms, reverse=True)
        shown, has_more = page(
            found, request.query_params, lambda each: PREFIX + each.batch_id, BATCHES_SHOWN
        )
        objects = [batch_object(each, each.request) for each in shown if each.request is not None]
        return _list(objects, has_more=has_more)

    def _batch_of(self, request: Request) -> tuple[Batch, BatchRequest]:
        name = request.path_params["name"]
        found = self._ledger.batches.get(name.removeprefix(PREFIX))
        if found is None or found.request is None or found.request.owner != _owner(request):
            raise NoAnswer(404, f"there is no batch {name!r}", retryable=False)
        return found, found.request

    async def _batch(self, request: Request) -> Response:
        return JSONResponse(batch_object(*self._batch_of(request)))

    async def _cancel(self, request: Request) -> Response:
        batch, wanted = self._batch_of(request)
        if wanted.ended is not None:
            why = f"the batch is {wanted.ended}, and cannot be cancelled"
            raise NoAnswer(409, why, retryable=False)
        return _shown(await self._batches.cancel(batch, wanted))


def _owner(request: Request) -> str:
    key: Key = request.state.key
    return key.owner


async def _chunks(upload: UploadFile) -> AsyncIterator[bytes]:
    while chunk := await upload.read(PIECE_BYTES):
        yield chunk


def _shown(batch: Batch) -> Response:
    assert batch.request is not None
    return JSONResponse(batch_object(batch, batch.request))


def _list(objects: list[Object], *, has_more: bool) -> Response:
    first, last = (objects[0]["id"], objects[-1]["id"]) if objects else (None, None)
    return JSONResponse(
        {
            "object": "list",
            "data": objects,
            "has_more": has_more,
            "first_id": first,
            "last_id": last,
        }
    )
