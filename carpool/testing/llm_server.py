"""A stand-in for an LLM server, for crash and load tests: OpenAI's API on loopback, no model.

The stand-in's name is in its model name and in every text. A text depends on the prompt only, and
cites a passage that the prompt numbers.

    python -m carpool.testing.llm_server --port 8000 --latency-ms 100 --tokens-per-second 50

It answers GET /health, GET /v1/models, POST /v1/chat/completions and POST /v1/completions, streamed
or whole; as vLLM also GET /version, GET /metrics, POST /tokenize, and prompts of token ids. POST
/_faults sets a `LlmFault`, as `refusing` does in Python. POST /_broken changes `LlmServer.broken`.
GET /_requests returns `LlmRequests`.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import threading
from collections.abc import AsyncGenerator, Callable, Iterator
from concurrent.futures import Future
from contextlib import aclosing, contextmanager, nullcontext
from functools import partial
from typing import Any, cast

import msgspec
from aiohttp import web

from carpool.testing.http import EventStream, LastRequest, RefusedRequest, decoded, json_response
from carpool.testing.llm_api import (
    NO_FAULT,
    ODD_EVENTS,
    ChatRequest,
    LlmFault,
    LlmRequests,
    Reply,
    TokenizeRequest,
    usage_of,
)
from carpool.testing.llm_text import NAME, prompt_hash, prompt_text, words, write
from carpool.testing.llm_tokens import decode, encode, messages_of, render
from carpool.testing.prefix_cache import PrefixCache

HOST = "127.0.0.1"
BODY_BYTES_MAX = 16 * 1024 * 1024
MODEL_TOKENS_MAX = 32_768
NO_TEMPLATE = "The tokenizer has no chat template, so a template is needed to render a chat."
STOP_S = 0.001
"""How long requests in progress may go on when the server stops; 0 would be for ever."""


class LlmServer:
    """The stand-in on its own thread; a context manager.

    `port` 0 takes a free one. `model` gets the stand-in's name as prefix unless it contains it.
    Without `takes_chats` it has no chat template. With
    `caches_prefixes` it counts tokens of prompts that begin as an earlier one as cached, in blocks.
    `kv_events`: where the stand-in says what it caches, as vLLM does.
    """

    def __init__(
        self,
        *,
        port: int = 0,
        model: str = NAME,
        latency_ms: float = 0.0,
        tokens_per_second: float | None = None,
        takes_chats: bool = True,
        caches_prefixes: bool = False,
        kv_events: str | None = None,
    ) -> None:
        self.model = model if NAME in model else f"{NAME}-{model}"
        self._takes_chats = takes_chats
        caches = caches_prefixes or kv_events is not None
        self._cache = PrefixCache(kv_events) if caches else None
        self.requests = LlmRequests()
        self.fault = NO_FAULT
        self.broken: dict[str, int] = {}
        """How many more requests fail with status 500 whose prompt contains a text, by text."""
        self.refused: dict[str, str] = {}
        """What a prompt that contains a text always gets, by text: a status, or `html`."""
        self.last: LastRequest | None = None
        self.port = port
        self._latency_s = latency_ms / 1_000
        self._token_s = 1 / tokens_per_second if tokens_per_second else 0.0
        self._listens = Future[None]()
        self._stop: Callable[[], object] = bool
        self._answering = set[asyncio.Task[Any]]()

    @property
    def url(self) -> str:
        """The base URL of its API."""
        return f"http://{HOST}:{self.port}/v1"

    def __enter__(self) -> LlmServer:
        """Starts, and waits until it listens. Raises `OSError` if the port is taken."""
        self._listens = Future()
        self._thread = threading.Thread(target=self._run_in_thread, name=NAME, daemon=True)
        self._thread.start()
        self._listens.result()
        return self

    def __exit__(self, *_: object) -> None:
        """Stops, and aborts the responses in progress."""
        stop, self._stop = self._stop, bool
        stop()
        self._thread.join()

    def _run_in_thread(self) -> None:
        try:
            asyncio.run(self.serve())
        except OSError as error:
            self._listens.set_exception(error)

    @contextmanager
    def refusing(self, fault: LlmFault) -> Iterator[None]:
        """Applies `fault` to requests in this context; hanging requests are never answered."""
        before, self.fault = self.fault, fault
        try:
            yield
        finally:
            self.fault = before

    async def serve(self, *, announce: bool = False) -> None:
        """Serves until it is stopped or cancelled; `announce` prints the address. `OSError`."""
        loop, stopping = asyncio.get_running_loop(), asyncio.Event()
        self._stop = partial(loop.call_soon_threadsafe, stopping.set)
        app = web.Application(client_max_size=BODY_BYTES_MAX)
        app.router.add_route("*", "/{path:.*}", self._answer)
        runner = web.AppRunner(
            app, handler_cancellation=True, access_log=None, shutdown_timeout=STOP_S
        )
        with self._cache or nullcontext():
            try:
                await runner.setup()
                await web.TCPSite(runner, HOST, self.port).start()
                self.port = runner.addresses[0][1]
                self._listens.set_result(None)
                if announce:
                    print(f"{self.model} listens on {self.url}", flush=True)  # noqa: T201
                await stopping.wait()
                for task in self._answering:
                    task.cancel()
                await asyncio.sleep(STOP_S)  # what is being accepted can be closed then
            finally:
                await runner.cleanup()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        match (request.method, request.path):
            case ("GET", "/health"):
                return json_response({"status": "ok", "server": NAME})
            case ("GET", "/v1/models"):
                about = {"id": self.model, "object": "model", "created": 0, "owned_by": NAME}
                listed = about | {"max_model_len": MODEL_TOKENS_MAX}
                return json_response({"object": "list", "data": [listed]})
            case ("POST", "/v1/chat/completions" | "/v1/completions"):
                self.last = LastRequest(request.path, request.headers, body)
                return await self._complete(request, decoded(body, ChatRequest))
            case ("POST", "/_faults"):
                self.fault = decoded(body, LlmFault)
                return json_response(self.fault)
            case ("POST", "/_broken"):
                self.broken |= decoded(body, dict[str, int])
                return json_response(self.broken)
            case ("GET", "/_requests"):
                return json_response(self.requests)
            case _:
                return self.answer_more(request.method, request.path, body)

    def answer_more(self, method: str, path: str, body: bytes) -> web.Response:
        """Answers what is not in OpenAI's API."""
        match (method, path):
            case ("GET", "/version"):
                return json_response({"version": NAME})
            case ("GET", "/metrics"):
                return web.Response(text=self._metrics())
            case ("POST", "/tokenize"):
                return json_response(self._tokenized(decoded(body, TokenizeRequest)))
            case _:
                raise RefusedRequest(404, f"{NAME} has no {method} {path}")

    def check(self, chat: ChatRequest) -> None:
        """Raises `RefusedRequest` for what the server does not take."""
        if chat.prompt is None and not self._takes_chats:
            raise RefusedRequest(400, NO_TEMPLATE)

    def text(self, chat: ChatRequest) -> str:
        """Returns what the server writes."""
        return write(prompt_text(chat.messages))

    async def pace(self, prompt_tokens: int) -> AsyncGenerator[None, None]:
        """Yields when tokens of a prompt that were not cached are read, and for each new one."""
        await asyncio.sleep(self._latency_s)
        yield
        loop = asyncio.get_running_loop()
        due_s = loop.time()
        while True:
            due_s += self._token_s  # not later for a busy machine
            await asyncio.sleep(max(0.0, due_s - loop.time()))
            yield

    def load(self) -> tuple[int, int]:
        """Returns how many requests run, and how many wait."""
        return self.requests.in_flight, 0

    def _metrics(self) -> str:
        """Returns what vLLM says of its load."""
        names = ("vllm:num_requests_running", "vllm:num_requests_waiting")
        values = dict(zip(names, self.load(), strict=True))
        labels = f'{{engine="0",model_name="{self.model}"}}'
        return "".join(f"{name}{labels} {float(value)}\n" for name, value in values.items())

    def _tokenized(self, request: TokenizeRequest) -> dict[str, Any]:
        if request.messages is not None and not self._takes_chats:
            raise RefusedRequest(400, NO_TEMPLATE)
        text = request.prompt if request.messages is None else render(request.messages)
        ids = encode(text or "")
        return {"tokens": ids, "count": len(ids), "max_model_len": MODEL_TOKENS_MAX}

    async def _complete(self, request: web.Request, chat: ChatRequest) -> web.StreamResponse:
        self.check(chat)
        if chat.prompt is not None:
            chat = msgspec.structs.replace(chat, messages=_messages_of(chat.prompt))
        if chat.model != self.model:
            raise RefusedRequest(404, f"The model `{chat.model}` does not exist.")
        prompt = prompt_hash(chat.messages)
        request_id = request.headers.get("x-request-id", prompt)
        counts = self.requests
        counts.started += 1
        counts.started_by_id[request_id] += 1
        counts.started_by_prompt[prompt] += 1
        said = prompt_text(chat.messages)
        refusal = next((mode for text, mode in self.refused.items() if text in said), None)
        fault = self._next_fault(said)
        counts.faulted += refusal is not None or fault.mode.isdigit()
        if refusal == "html":
            return web.Response(text=f"<html>{NAME} refuses</html>", content_type="text/html")
        if refusal is not None:
            raise RefusedRequest(int(refusal), f"{NAME} refuses this prompt")
        if fault.mode.isdigit():
            raise RefusedRequest(
                int(fault.mode), f"{NAME} is set to refuse", retry_after_s=fault.retry_after_s
            )
        self._answering.add(task := cast("asyncio.Task[Any]", asyncio.current_task()))
        counts.in_flight += 1
        counts.in_flight_max = max(counts.in_flight_max, counts.in_flight)
        try:
            response = await self._write(chat, fault, request_id, request)
        except (ConnectionError, asyncio.CancelledError):
            counts.disconnected += fault.mode != "reset"
            raise
        finally:
            self._answering.discard(task)
            counts.in_flight -= 1
        if fault.mode == "none" or (fault.mode == "odd" and chat.stream):
            # Counted before the client can see the end.
            counts.completed += 1
            counts.completed_by_id[request_id] += 1
            counts.completed_by_prompt[prompt] += 1
            if isinstance(response, EventStream):
                await response.event("[DONE]")
        return response

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
        self, chat: ChatRequest, fault: LlmFault, request_id: str, request: web.Request
    ) -> web.StreamResponse:
        """Writes the answer up to its end, or up to the fault."""
        tokens = words(self.text(chat))
        limits = (chat.max_tokens, chat.max_completion_tokens, len(tokens))
        limit = next(each for each in limits if each is not None)
        cut, finish_reason = tokens[:limit], "stop" if len(tokens) <= limit else "length"
        ids = chat.prompt if isinstance(chat.prompt, list) else encode(render(chat.messages))
        cached_tokens = 0 if self._cache is None else self._cache.take(ids)
        reply = Reply(chat, request_id, usage_of(len(ids), len(cut), cached_tokens))
        odd = ODD_EVENTS if fault.mode == "odd" and chat.stream else ()
        fault = NO_FAULT if odd else fault
        stream = EventStream(request)
        async with aclosing(self.pace(len(ids) - cached_tokens)) as pace:
            await anext(pace)
            for event in odd:
                await stream.event(event)
            for token in cut[: None if fault.mode == "none" else fault.after_tokens]:
                await anext(pace)
                if chat.stream:
                    await stream.event(reply.piece(token))
        if fault.mode != "none":
            self.requests.faulted += 1
            await stream.fail(fault)
        elif not chat.stream:
            return json_response(reply.whole("".join(cut), finish_reason))
        elif not odd:
            await stream.event(reply.piece("", finish_reason))
            if (chat.stream_options or {}).get("include_usage"):
                await stream.event(reply.usage_piece())
        return stream


def _messages_of(prompt: list[int] | str) -> list[dict[str, Any]]:
    try:
        return messages_of(prompt if isinstance(prompt, str) else decode(prompt))
    except ValueError as error:
        raise RefusedRequest(400, f"the prompt has no ids of {NAME}: {error}") from error


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
    add("--kv-events", help="where to say what it caches, for llm.kv_events")
    add("--broken", type=msgspec.json.decode, default={}, help="`LlmServer.broken`, in JSON")
    given = vars(parser.parse_args())
    broken = given.pop("broken")
    server = LlmServer(**given)
    server.broken = broken
    try:
        asyncio.run(server.serve(announce=True))
    except KeyboardInterrupt:
        return 0
    except OSError as error:
        print(  # noqa: T201 - a program of its own
            f"cannot listen on {HOST}:{server.port}: {error.strerror}; choose another --port",
            file=sys.stderr,
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
