"""A stand-in for an LLM server, for crash and load tests: OpenAI's API on loopback, no model.

The stand-in's name is in its model name and in every text. A text depends on the prompt only, and
cites a passage that the prompt numbers.

    python -m carpool.testing.llm_server --port 8000 --latency-ms 100 --tokens-per-second 50

It answers GET /health, GET /v1/models and POST /v1/chat/completions (streamed or whole). POST
/_faults sets a `LlmFault`, as `refusing` does in Python. POST /_broken changes `LlmServer.broken`.
GET /_requests returns `LlmRequests`.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, TypeVar

import msgspec

from carpool.testing.http import HttpRequest, RefusedRequest, Responder, serve_connection
from carpool.testing.llm_text import NAME, prompt_hash, prompt_text, words, write

HOST = "127.0.0.1"

T = TypeVar("T")


class LlmFault(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The fault of the next `count` requests (None: of all) for a completion.

    `429`, `503`, `500`, `400`: that status, with `retry_after_s`. `hang`: no reply. `reset`: the
    connection is closed. `garbage`: no event stream. The last three begin after `after_tokens`
    tokens.
    """

    mode: Literal["none", "400", "429", "500", "503", "hang", "reset", "garbage"]
    count: int | None = None
    retry_after_s: float | None = None
    after_tokens: int = 0


NO_FAULT = LlmFault(mode="none")
REFUSALS = (
    LlmFault(mode="429", retry_after_s=1.0),
    LlmFault(mode="503"),
    LlmFault(mode="hang"),
    LlmFault(mode="reset"),
    LlmFault(mode="garbage"),
)
"""The faults of a server: busy, away, silent, disconnecting, invalid."""


class LlmRequests(msgspec.Struct, kw_only=True):
    """Counts of requests for a completion, in all, by header X-Request-Id and by `prompt_hash`.

    `disconnected`: by the client. `faulted`: got a fault. `in_flight_max`: at the same time.
    """

    started: int = 0
    completed: int = 0
    disconnected: int = 0
    faulted: int = 0
    in_flight: int = 0
    in_flight_max: int = 0
    started_by_id: Counter[str] = msgspec.field(default_factory=Counter)
    completed_by_id: Counter[str] = msgspec.field(default_factory=Counter)
    started_by_prompt: Counter[str] = msgspec.field(default_factory=Counter)
    completed_by_prompt: Counter[str] = msgspec.field(default_factory=Counter)


class ChatRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The used fields of a request for a completion."""

    model: str
    messages: list[dict[str, Any]]
    max_tokens: int | None = None
    stream: bool = False
    stream_options: dict[str, Any] | None = None
    response_format: dict[str, Any] | None = None


class LlmServer:
    """The stand-in on its own thread; a context manager.

    `port` 0 takes a free one. `model` gets the stand-in's name as prefix unless it contains it.
    """

    def __init__(
        self,
        *,
        port: int = 0,
        model: str = NAME,
        latency_ms: float = 0.0,
        tokens_per_second: float | None = None,
    ) -> None:
        self.model = model if NAME in model else f"{NAME}-{model}"
        self.requests = LlmRequests()
        self.fault = NO_FAULT
        self.owner = NAME
        """Who owns the model, as the list of models says: `vllm` for a vLLM."""
        self.broken: dict[str, int] = {}
        """How many more requests fail with status 500 whose prompt contains a text, by text."""
        self.port = port
        self._latency_s = latency_ms / 1_000
        self._token_s = 1 / tokens_per_second if tokens_per_second else 0.0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._thread: threading.Thread | None = None
        self._started = threading.Event()
        self._error: OSError | None = None
        self._connections: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        """The base URL of its API."""
        return f"http://{HOST}:{self.port}/v1"

    def __enter__(self) -> LlmServer:
        """Starts, and waits until it listens. Raises `OSError` if the port is taken."""
        self._started.clear()
        self._thread = threading.Thread(
            target=self._run_in_thread, name="llm-stand-in", daemon=True
        )
        self._thread.start()
        self._started.wait()
        if self._error is not None:
            raise self._error
        return self

    @contextmanager
    def refusing(self, fault: LlmFault) -> Iterator[None]:
        """Applies `fault` to requests in this context; hanging requests are never answered."""
        before, self.fault = self.fault, fault
        try:
            yield
        finally:
            self.fault = before

    def __exit__(self, *_: object) -> None:
        """Stops, and aborts the responses in progress."""
        if self._loop is not None and self._stop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._stop.set)
        if self._thread is not None:
            self._thread.join()

    def _run_in_thread(self) -> None:
        try:
            asyncio.run(self.serve())
        except OSError as error:
            self._error = error
            self._started.set()

    async def serve(self, *, announce: bool = False) -> None:
        """Serves until it is stopped or cancelled; `announce` prints the address. `OSError`."""
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._serve, HOST, self.port)
        self.port = server.sockets[0].getsockname()[1]
        self._started.set()
        if announce:
            print(f"{self.model} listens on {self.url}", flush=True)  # noqa: T201
        try:
            await self._stop.wait()
        finally:
            server.close()
            for task in tuple(self._connections):
                task.cancel()
            await asyncio.gather(*self._connections, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            await serve_connection(reader, writer, self._answer)
        except asyncio.CancelledError:
            writer.transport.abort()  # the server stops; no caller awaits this task
        finally:
            self._connections.discard(task)

    async def _answer(self, request: HttpRequest, responder: Responder) -> None:
        match (request.method, request.path):
            case ("GET", "/health"):
                await responder.json({"status": "ok", "server": NAME})
            case ("GET", "/v1/models"):
                listed = {
                    "id": self.model,
                    "object": "model",
                    "created": 0,
                    "owned_by": self.owner,
                    "max_model_len": 32_768,
                }
                await responder.json({"object": "list", "data": [listed]})
            case ("POST", "/v1/chat/completions"):
                await self._complete(request, responder)
            case ("POST", "/_faults"):
                self.fault = _decode(request.body, LlmFault)
                await responder.json(self.fault)
            case ("POST", "/_broken"):
                self.broken |= _decode(request.body, dict[str, int])
                await responder.json(self.broken)
            case ("GET", "/_requests"):
                await responder.json(self.requests)
            case _:
                raise RefusedRequest(404, f"{NAME} has no {request.method} {request.path}")

    async def _complete(self, request: HttpRequest, responder: Responder) -> None:
        chat = _decode(request.body, ChatRequest)
        if chat.model != self.model:
            raise RefusedRequest(404, f"The model `{chat.model}` does not exist.")
        prompt = prompt_hash(chat.messages)
        request_id = request.headers.get("x-request-id", prompt)
        counts = self.requests
        counts.started += 1
        counts.started_by_id[request_id] += 1
        counts.started_by_prompt[prompt] += 1
        fault = self._next_fault(prompt_text(chat.messages))
        if fault.mode.isdigit():
            counts.faulted += 1
            raise RefusedRequest(
                int(fault.mode), f"{NAME} is set to refuse", retry_after_s=fault.retry_after_s
            )
        counts.in_flight += 1
        counts.in_flight_max = max(counts.in_flight_max, counts.in_flight)
        try:
            await self._write(chat, fault, request_id, responder)
        except (ConnectionError, asyncio.CancelledError):
            counts.disconnected += fault.mode != "reset"
            raise
        finally:
            counts.in_flight -= 1
        if fault.mode == "none":
            counts.completed += 1
            counts.completed_by_id[request_id] += 1
            counts.completed_by_prompt[prompt] += 1

    def _next_fault(self, prompt: str) -> LlmFault:
        for text, left in self.broken.items():
            if left > 0 and text in prompt:
                self.broken[text] = left - 1
                return LlmFault(mode="500")
        fault = self.fault
        if fault.mode == "none" or fault.count == 0:
            return NO_FAULT
        if fault.count is not None:
            self.fault = msgspec.structs.replace(fault, count=fault.count - 1)
        return fault

    async def _write(
        self, chat: ChatRequest, fault: LlmFault, request_id: str, responder: Responder
    ) -> None:
        """Writes the answer as tokens, as a whole, or up to the fault."""
        text = write(prompt_text(chat.messages), chat.response_format)
        tokens = words(text)
        limit = len(tokens) if chat.max_tokens is None else chat.max_tokens
        cut, finish_reason = tokens[:limit], "stop" if len(tokens) <= limit else "length"
        usage = {
            "prompt_tokens": len(words(prompt_text(chat.messages))),
            "completion_tokens": len(cut),
            "total_tokens": len(words(prompt_text(chat.messages))) + len(cut),
            "prompt_tokens_details": {"cached_tokens": 0},
        }
        head = {"id": request_id, "created": 0, "model": self.model}
        await responder.wait(self._latency_s)
        written = []
        for index, token in enumerate(cut):
            if fault.mode != "none" and index >= fault.after_tokens:
                break
            await responder.wait(self._token_s)
            written.append(token)
            if chat.stream:
                delta = {"role": "assistant", "content": token}
                choice = {"index": 0, "delta": delta, "finish_reason": None}
                await responder.event(
                    {**head, "object": "chat.completion.chunk", "choices": [choice]}
                )
        if fault.mode != "none":
            self.requests.faulted += 1
            await _fail(fault, responder)
        elif chat.stream:
            choice = {"index": 0, "delta": {}, "finish_reason": finish_reason}
            await responder.event({**head, "object": "chat.completion.chunk", "choices": [choice]})
            if (chat.stream_options or {}).get("include_usage"):
                await responder.event(
                    {**head, "object": "chat.completion.chunk", "choices": [], "usage": usage}
                )
            await responder.end_events()
        else:
            message = {"role": "assistant", "content": "".join(written)}
            choice = {"index": 0, "message": message, "finish_reason": finish_reason}
            await responder.json(
                {**head, "object": "chat.completion", "choices": [choice], "usage": usage}
            )


async def _fail(fault: LlmFault, responder: Responder) -> None:
    match fault.mode:
        case "hang":
            await responder.wait(None)
        case "reset":
            responder.reset()
            raise ConnectionResetError("set to disconnect")
        case _:
            await responder.raw_event(f"<html>{NAME} writes what is no event</html>")


def _decode(body: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.DecodeError as error:
        raise RefusedRequest(400, f"the body is no {kind.__name__}: {error}") from error


def main() -> int:
    """Runs the stand-in until it is interrupted. Returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m carpool.testing.llm_server",
        description="A stand-in for an LLM server.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--port", type=int, default=8000, help="port on loopback; 0 takes a free one")
    add("--latency-ms", type=float, default=0.0, help="wait before the first token")
    add("--tokens-per-second", type=float, help="speed of one answer; None: unlimited")
    add("--model", default=NAME, help=f"name of the model; {NAME} is put before it")
    options = parser.parse_args()
    server = LlmServer(**vars(options))
    try:
        asyncio.run(server.serve(announce=True))
    except KeyboardInterrupt:
        return 0
    except OSError as error:
        print(  # noqa: T201 - a program of its own
            f"cannot listen on {HOST}:{options.port}: {error.strerror}; choose another --port",
            file=sys.stderr,
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
