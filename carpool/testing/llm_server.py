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
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager, nullcontext
from functools import partial
from typing import Any, Literal, TypeVar

import msgspec

from carpool.testing.http import HttpRequest, RefusedRequest, Responder, serve_connection
from carpool.testing.llm_api import (
    NO_FAULT,
    ODD_EVENTS,
    ChatRequest,
    LlmFault,
    LlmRequests,
    TokenizeRequest,
)
from carpool.testing.llm_text import NAME, prompt_hash, prompt_text, words, write
from carpool.testing.llm_tokens import decode, encode, messages_of, render
from carpool.testing.prefix_cache import PrefixCache

HOST = "127.0.0.1"
MODEL_TOKENS_MAX = 32_768
NO_TEMPLATE = "The tokenizer has no chat template, so a template is needed to render a chat."

T = TypeVar("T")


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
        self.last: HttpRequest | None = None
        """The last request for a completion."""
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
        with self._cache or nullcontext():
            await self._serve_until_stopped(announce)

    async def _serve_until_stopped(self, announce: bool) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._serve, HOST, self.port)
        self.port = server.sockets[0].getsockname()[1]
        self._started.set()
        if announce:
            print(f"{self.model} listens on {self.url}", flush=True)  # noqa: T201
        try:
            await self._stop.wait()
        finally:
            for listener in server.sockets:  # else a closed server leaks what it has just accepted
                self._loop.remove_reader(listener)
            for _ in range(4):  # until the last accepted connection is served
                await asyncio.sleep(0)
            server.close()
            while connections := tuple(self._connections):
                for task in connections:
                    task.cancel()
                await asyncio.gather(*connections, return_exceptions=True)
                await asyncio.sleep(0)

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
                    "owned_by": NAME,
                    "max_model_len": MODEL_TOKENS_MAX,
                }
                await responder.json({"object": "list", "data": [listed]})
            case ("POST", "/v1/chat/completions" | "/v1/completions"):
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
                await self.answer_more(request, responder)

    async def answer_more(self, request: HttpRequest, responder: Responder) -> None:
        """Answers what is not in OpenAI's API."""
        match (request.method, request.path):
            case ("GET", "/version"):
                await responder.json({"version": NAME})
            case ("GET", "/metrics"):
                await responder.text(self._metrics())
            case ("POST", "/tokenize"):
                await responder.json(self._tokenized(_decode(request.body, TokenizeRequest)))
            case _:
                raise RefusedRequest(404, f"{NAME} has no {request.method} {request.path}")

    def check(self, chat: ChatRequest) -> None:
        """Raises `RefusedRequest` for what the server does not take."""
        if chat.prompt is None and not self._takes_chats:
            raise RefusedRequest(400, NO_TEMPLATE)

    def text(self, chat: ChatRequest) -> str:
        """Returns what the server writes."""
        return write(prompt_text(chat.messages))

    async def pace(self, responder: Responder, prompt_tokens: int) -> AsyncGenerator[None, None]:
        """Yields when the server has read the prompt, and when each token may be written."""
        await responder.wait(self._latency_s)
        yield
        loop = asyncio.get_running_loop()
        due_s = loop.time()
        while True:
            due_s += self._token_s  # not later for a busy machine
            await responder.wait(max(0.0, due_s - loop.time()))
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

    async def _complete(self, request: HttpRequest, responder: Responder) -> None:
        self.last = request
        chat = _decode(request.body, ChatRequest)
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
            await responder.text(f"<html>{NAME} is set to refuse</html>", "text/html")
            return
        if refusal is not None:
            raise RefusedRequest(int(refusal), f"{NAME} refuses this prompt")
        if fault.mode.isdigit():
            raise RefusedRequest(
                int(fault.mode), f"{NAME} is set to refuse", retry_after_s=fault.retry_after_s
            )
        counts.in_flight += 1
        counts.in_flight_max = max(counts.in_flight_max, counts.in_flight)
        try:
            end = await self._write(chat, fault, request_id, responder)
        except (ConnectionError, asyncio.CancelledError):
            counts.disconnected += fault.mode != "reset"
            raise
        finally:
            counts.in_flight -= 1
        if end is not None:  # counted before the client can see it
            counts.completed += 1
            counts.completed_by_id[request_id] += 1
            counts.completed_by_prompt[prompt] += 1
            await end()

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
    ) -> Callable[[], Awaitable[None]] | None:
        """Writes the answer up to its end, which it returns, or up to the fault."""
        tokens = words(self.text(chat))
        limits = (chat.max_tokens, chat.max_completion_tokens, len(tokens))
        limit = next(each for each in limits if each is not None)
        cut, finish_reason = tokens[:limit], "stop" if len(tokens) <= limit else "length"
        ids = chat.prompt if isinstance(chat.prompt, list) else encode(render(chat.messages))
        usage = self._usage(ids, len(cut))
        is_chat = chat.prompt is None
        kind = "chat.completion" if is_chat else "text_completion"
        head = {"id": request_id, "created": 0, "model": self.model, "object": kind}
        chunk = head | {"object": "chat.completion.chunk" if is_chat else kind}
        odd = ODD_EVENTS if fault.mode == "odd" and chat.stream else ()
        fault = NO_FAULT if odd else fault
        written = []
        async with aclosing(self.pace(responder, len(ids))) as pace:
            await anext(pace)
            for event in odd:
                await responder.raw_event(event)
            for index, token in enumerate(cut):
                if fault.mode != "none" and index >= fault.after_tokens:
                    break
                await anext(pace)
                written.append(token)
                if chat.stream:
                    choice = _choice("delta" if is_chat else "text", token, None)
                    await responder.event({**chunk, "choices": [choice]})
        if fault.mode != "none":
            self.requests.faulted += 1
            await _fail(fault, responder)
            return None
        if chat.stream:
            if not odd:
                choice = _choice("delta" if is_chat else "text", "", finish_reason)
                await responder.event({**chunk, "choices": [choice]})
            if not odd and (chat.stream_options or {}).get("include_usage"):
                await responder.event({**chunk, "choices": [], "usage": usage})
            return responder.end_events
        choice = _choice("message" if is_chat else "text", "".join(written), finish_reason)
        return partial(responder.json, {**head, "choices": [choice], "usage": usage})

    def _usage(self, ids: Sequence[int], written: int) -> dict[str, Any]:
        """Returns the counts of tokens of an answer, and caches its prompt."""
        return {
            "prompt_tokens": len(ids),
            "completion_tokens": written,
            "total_tokens": len(ids) + written,
            "prompt_tokens_details": {
                "cached_tokens": 0 if self._cache is None else self._cache.take(ids)
            },
        }


def _choice(
    field: Literal["delta", "message", "text"], text: str, finish_reason: str | None
) -> dict[str, Any]:
    """Returns a choice with a text in the field of a chat, or in that of a completion."""
    content: Any = text if field == "text" else {"role": "assistant", "content": text}
    return {"index": 0, field: content, "finish_reason": finish_reason}


def _messages_of(prompt: list[int] | str) -> list[dict[str, Any]]:
    try:
        return messages_of(prompt if isinstance(prompt, str) else decode(prompt))
    except ValueError as error:
        raise RefusedRequest(400, f"the prompt has no ids of {NAME}: {error}") from error


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
    add("--kv-events", help="where to say what it caches, for llm.kv_events")
    add("--broken", type=msgspec.json.decode, default={}, help="`LlmServer.broken`, in JSON")
    options = parser.parse_args()
    given = vars(options)
    broken = given.pop("broken")
    server = LlmServer(**given)
    server.broken = broken
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
