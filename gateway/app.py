"""The routes of the gateway."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import orjson
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from sse_starlette import EventSourceResponse
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

import carpool
from carpool.errors import CarpoolError, RecordError, RetryableError
from carpool.telemetry.gateway_metrics import GatewayMetrics
from gateway.agents import agent_server
from gateway.failures import NoAnswer, error_body, failure_of
from gateway.file_routes import FileRoutes
from gateway.guard import PASSAGES, TooLarge, TooSlow
from gateway.in_flight import QuestionsInFlight
from gateway.keys import Key
from gateway.limits import Limits
from gateway.plan.objects import (
    AddressOf,
    Object,
    chat_object,
    output_items,
    response_object,
    status_of,
)
from gateway.plan.streams import ChatStream, ResponseStream
from gateway.requests import IDEMPOTENCY, digest_of_request, parsed, query_id_of, while_there
from producers import Client
from producers.build_query import build_record
from producers.openai.fields import BadRequest
from producers.openai.questions import OpenAIQuestion, of_chat, of_response
from schemas.answer import Answer, PartialAnswer

RETRY_COUNT = "x-stainless-retry-count"
"""The SDK counts its tries here."""
PING_S = 15
BEAT_S = 1.0


class Gateway:
    """The routes, above a client. `models`: the names that a request may give."""

    def __init__(
        self,
        client: Client,
        models: Sequence[str],
        address_of: AddressOf,
        limits: Limits,
        metrics: GatewayMetrics,
        files: FileRoutes,
    ) -> None:
        self._client, self._files = client, files
        self._metrics = metrics
        self._questions = QuestionsInFlight(client, metrics)
        self.beat_s = time.monotonic()
        self.failure: CarpoolError | None = None
        self._address_of = address_of
        self._limits = limits
        self.models = models
        self._started_s = int(time.time())
        server = agent_server(self._ask, self._address_of, carpool.__version__)
        self._agents = StreamableHTTPSessionManager(server, json_response=True, stateless=True)

    def app(self) -> Starlette:
        """Returns the application. It opens and closes the client."""
        routes = [
            Route("/v1/models", self._models),
            Route("/v1/models/{name:path}", self._model),
            Route("/v1/responses", self._responses, methods=["POST"]),
            Route("/v1/chat/completions", self._chat, methods=["POST"]),
            Route(f"{PASSAGES}{{name:path}}", self._passage),
            *self._files.routes(),
            *(Route(path, self._agents.asgi_app, methods=["POST"]) for path in ("/mcp", "/mcp/")),
        ]
        handlers: dict[Any, Any] = {
            404: _no_route,
            405: _no_route,
            BadRequest: _refused,
            RecordError: _refused,
            TooLarge: _too_large,
            CarpoolError: _failed,
            Exception: _defect,
        }
        app = Starlette(routes=routes, exception_handlers=handlers, lifespan=self._lifespan)
        app.router.redirect_slashes = False  # a redirect names the scheme behind a proxy
        return app

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        try:
            await self._client.__aenter__()
            await asyncio.to_thread(self._files.open)
        except CarpoolError as error:
            self.failure = error
            raise
        async with self._agents.run():
            tasks = asyncio.create_task(self._beat()), asyncio.create_task(self._files.watch())
            try:
                yield
            finally:
                for task in tasks:
                    task.cancel()
                await self._client.__aexit__()  # first, so that nothing is withdrawn: the next
                await self._questions.close()  # gateway may get the same requests
                await self._files.close()

    async def _beat(self) -> None:
        while True:
            self.beat_s = time.monotonic()
            await asyncio.sleep(BEAT_S)

    def not_ready(self) -> tuple[str, ...]:
        """Returns why questions are not answered, in words. Thread-safe."""
        trouble = self._client.trouble
        return (trouble,) if trouble else ()

    async def _models(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [*map(self._shown, self.models)]})

    async def _model(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in self.models:
            body = error_body(f"there is no model {name!r}", param="model", code="model_not_found")
            return JSONResponse(body, 404)
        return JSONResponse(self._shown(name))

    def _shown(self, name: str) -> Object:
        return {"id": name, "object": "model", "created": self._started_s, "owned_by": "carpool"}

    async def _responses(self, request: Request) -> Response:
        body = await request.body()
        asked = of_response(parsed(body), self.models)
        query_id, made_s = query_id_of(request), int(time.time())
        response_id = f"resp_{query_id.replace('-', '')}"
        if asked.is_stream:
            return self._streamed(
                request,
                body,
                asked,
                query_id,
                ResponseStream(asked, response_id, made_s, self._address_of),
            )
        answer = await self._answer(request, body, asked, query_id)
        output = output_items(asked, answer, response_id, self._address_of)
        status = status_of(answer)
        made = partial(response_object, asked, response_id, made_s)
        return _json(made(status=status, output=output, answer=answer))

    async def _chat(self, request: Request) -> Response:
        body = await request.body()
        asked = of_chat(parsed(body), self.models)
        query_id, made_s = query_id_of(request), int(time.time())
        chat_id = f"chatcmpl-{query_id.replace('-', '')}"
        if asked.is_stream:
            stream = ChatStream(asked, chat_id, made_s, self._address_of)
            return self._streamed(request, body, asked, query_id, stream, end="[DONE]")
        answer = await self._answer(request, body, asked, query_id)
        return _json(chat_object(asked, chat_id, made_s, answer, self._address_of))

    async def _passage(self, request: Request) -> Response:
        """The text of a passage: what a link of a citation shows."""
        answer = await self._ask(request, fetch=[request.path_params["name"]])
        if failure := failure_of(answer):
            raise failure
        texts = [each.text for found in answer.fetched for each in found.passages]
        headers = {"x-content-type-options": "nosniff"}
        return PlainTextResponse("\n\n".join(texts), 200 if texts else 404, headers)

    async def _ask(self, request: Request, text: str | None = None, **args: Any) -> Answer:
        """Asks for the key of a request. A client that goes away withdraws the question."""
        key: Key = request.state.key
        asked = self._client.ask(text, tenant=key.owner, **args)
        answer = await while_there(request, asked)
        self._limits.spent(key, answer, time.time())
        return answer

    async def _answer(
        self, request: Request, body: bytes, asked: OpenAIQuestion, query_id: str
    ) -> Answer:
        """Returns the answer, or raises why there is none."""
        return await while_there(request, self._last(request, body, asked, query_id))

    async def _last(
        self, request: Request, body: bytes, asked: OpenAIQuestion, query_id: str
    ) -> Answer:
        async with aclosing(self._events(request, body, asked, query_id)) as events:
            async for event in events:
                if isinstance(event, Answer):
                    if failure := failure_of(event):
                        raise failure
                    return event
        raise AssertionError("a question ends with an answer or an error")

    def _events(
        self, request: Request, body: bytes, asked: OpenAIQuestion, query_id: str
    ) -> AsyncGenerator[PartialAnswer | Answer, None]:
        key: Key = request.state.key
        asked = replace(asked, args={**asked.args, "tenant": key.owner})
        what = (key.sha256, digest_of_request(request, body))
        is_retry = request.headers.get(RETRY_COUNT, "0") != "0"

        def spent(answer: Answer) -> None:
            self._limits.spent(key, answer, time.time())

        has_key = bool(request.headers.get(IDEMPOTENCY))
        return self._questions.events(
            asked, query_id, what, spent, is_retry=is_retry, has_key=has_key
        )

    def _streamed(
        self,
        request: Request,
        body: bytes,
        asked: OpenAIQuestion,
        query_id: str,
        stream: ResponseStream | ChatStream,
        *,
        end: str = "",
    ) -> Response:
        # What the brokers' side refuses is refused before the stream begins.
        build_record(asked.text, deadline_ms=None, now_us=0, **asked.args)

        async def events() -> AsyncIterator[dict[str, str]]:
            for shown in stream.begin():
                yield _event(shown)
            try:
                async with aclosing(self._events(request, body, asked, query_id)) as found:
                    async for event in found:
                        for shown in _shown_of(stream, event):
                            yield _event(shown)
            except (CarpoolError, RecordError) as error:
                for shown in stream.fail(str(error)):
                    yield _event(shown)
            self._metrics.failed_streams.inc(stream.has_failed)
            if end:
                yield {"data": end}

        return EventSourceResponse(events(), ping=PING_S, sep="\n")


def _shown_of(stream: ResponseStream | ChatStream, event: Any) -> Any:
    if not isinstance(event, Answer):
        return () if event.step is not None else stream.piece(event)
    failure = failure_of(event)
    return stream.end(event) if failure is None else stream.fail(str(failure), event)


def _event(shown: Object) -> dict[str, str]:
    event = {"data": orjson.dumps(shown).decode()}
    return event | {"event": shown["type"]} if "sequence_number" in shown else event


def _json(shown: Object) -> Response:
    return Response(orjson.dumps(shown), media_type="application/json")


def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, BadRequest | RecordError)
    if isinstance(error, BadRequest):
        param, code = error.param, error.code
    else:
        param, code = (error.field or "").removeprefix("$."), error.reason
    status = 404 if code == "model_not_found" else 400
    return JSONResponse(error_body(str(error), param=param or None, code=code), status)


def _too_large(request: Request, error: Exception) -> Response:
    return JSONResponse(error_body(str(error)), 408 if isinstance(error, TooSlow) else 413)


def _failed(request: Request, error: Exception) -> Response:
    may_pass = isinstance(error, RetryableError)
    status, retries = 503 if may_pass else 500, may_pass
    if isinstance(error, NoAnswer):
        status, retries = error.status, error.retryable
    body = error_body(str(error), kind="server_error" if status >= 500 else "invalid_request_error")
    return JSONResponse(body, status, headers={"x-should-retry": str(retries).lower()})


def _defect(request: Request, error: Exception) -> Response:
    """The server logs the error itself."""
    return JSONResponse(error_body("a fault of the gateway", kind="server_error"), 500)


def _no_route(request: Request, error: Exception) -> Response:
    what = f"{request.method} {request.url.path}: there is no such route"
    return JSONResponse(error_body(what, code="not_found"), getattr(error, "status_code", 404))
