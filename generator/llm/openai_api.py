"""A server with OpenAI's API, such as vLLM: streamed completions.

A server that tokenizes gets prompts as token ids (/v1/completions), every other one as chat text.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing, contextmanager, suppress
from dataclasses import replace
from typing import Annotated, Any

import msgspec
import structlog
from aiohttp import ClientResponse

from carpool.terminal import without_password
from generator.llm.http_client import HttpClient, StatusError
from generator.llm.openai_errors import BUSY, failure, is_too_long, one_line
from generator.llm.protocol import LlmEvent, LlmPiece, LlmRefusal, LlmRequest, PromptRefused
from generator.llm.reply import read_reply
from generator.llm.server_events import ServerEvents, WrongPage
from generator.llm.server_facts import ServerFacts, after_refusal, request_body
from generator.llm.server_load import requests_waiting
from generator.llm.token_prompts import SAMPLE, CannotTokenize, PromptTokenizer
from generator.settings import LlmSettings
from schemas.record import well_formed

log = structlog.get_logger()

CHECK_TIMEOUT_S = 10.0
LOAD_TIMEOUT_S = 2.0
IDS_PATH = "/completions"
"""Where prompts of token ids go."""
SEGMENTS_MAX = 10_000
"""Passages whose token ids are kept, about 2 KB each."""
_NOT_THERE = (404, 405, 501)
_FORM = (400, *_NOT_THERE, 415, 422)
"""Statuses of a request whose form the server may not know."""
_SAMPLE_PROMPT = ("You answer questions.", "Passages:\n\n")
_CANARY = LlmRequest(
    id="carpool/canary",
    system=_SAMPLE_PROMPT[0],
    user=f"{_SAMPLE_PROMPT[1]}Hello",
    segments=(_SAMPLE_PROMPT[1], "Hello"),
    max_tokens=1,
)


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    """The answer of /models."""

    data: list[_Model] | None


class _Version(msgspec.Struct):
    """The answer of /version."""

    version: str | None = None


class _Tokenized(msgspec.Struct):
    """The answer of /tokenize."""

    tokens: list[Annotated[int, msgspec.Meta(ge=0, lt=2**31)]]


class OpenAiLlm:
    """See `LlmEngine`. Makes its client at the first call, in the event loop. Does not retry."""

    def __init__(self, settings: LlmSettings) -> None:
        self._settings = settings
        self._client_or_none: HttpClient | None = None
        self._has_answered = self._has_said_odd_counts = False
        self._facts: ServerFacts | None = None
        self._is_vllm = False
        self._finding_out = asyncio.Lock()
        self._sample_ids: tuple[int, ...] = ()
        self._said: tuple[object, ...] = ()
        self._tokenizer = PromptTokenizer(self._ask_for_ids, segments_max=SEGMENTS_MAX)

    @property
    def sample_ids(self) -> tuple[int, ...]:
        """See `LlmEngine`. Unknown again when the server must be checked anew."""
        return self._sample_ids if self._facts is not None and self._facts.takes_ids else ()

    @property
    def address(self) -> str:
        """The server's URL; stars in place of a password."""
        return without_password(self._settings.base_url)

    def _client(self) -> HttpClient:
        if self._client_or_none is None:
            key = self._settings.api_key.value
            headers = {"Authorization": f"Bearer {key}"} if key else {}
            self._client_or_none = HttpClient(
                self._settings.base_url, (headers, self._settings.headers())
            )
        return self._client_or_none

    async def check(self) -> None:
        """Lists the models, and finds out what the server takes.

        Raises `LlmRefusal` without an answer, if the model is missing, or if it renders no chat.
        """
        try:
            async with asyncio.timeout(CHECK_TIMEOUT_S):
                page = msgspec.json.decode(await self._client().fetch("/models"), type=_Models)
        except Exception as error:  # also what a server that is no API makes of the HTTP library
            if isinstance(error, StatusError) and error.status == 404:
                raise LlmRefusal(
                    "unreachable",
                    f"it lists no models ({one_line(str(error))}); base_url ends in /v1, for vLLM",
                ) from error
            failed = self._failed(error, "the list of its models")
            if isinstance(failed, PromptRefused) or failed.kind == "broken":
                failed = LlmRefusal("broken", f"{failed}; is it an API? base_url ends in /v1")
            raise failed from error
        names = [model.id for model in page.data or ()]
        if self._settings.model not in names:
            listed = ", ".join(names[:10]) or "none"
            raise LlmRefusal(
                "model_missing",
                f"it has no model {self._settings.model!r}, only: {listed}; set llm.model to one "
                "of these",
            )
        with self._failures("what it takes"):
            async with self._finding_out:
                await self._find_out()

    async def canary(self) -> None:
        """See `LlmEngine`. A server that refuses the canary for its content takes requests."""
        try:
            async for _ in self.stream(_CANARY):
                pass
        except PromptRefused:
            return
        except LlmRefusal:
            self._facts = None  # asked again: another server may answer next
            raise

    async def tokenize(self, request: LlmRequest) -> tuple[int, ...]:
        """See `LlmEngine`."""
        with self._failures("token ids"):
            return await self._ids(request, await self._known_facts())

    async def prefix(self, request: LlmRequest, passages: int) -> tuple[int, ...]:
        """See `LlmEngine`."""
        begin = request.segments[: 1 + passages]
        with self._failures("token ids"), suppress(CannotTokenize):
            if (await self._known_facts()).takes_ids and begin:
                return await self._tokenizer.prefix(request.system, begin)
        return ()

    async def waiting(self) -> int | None:
        """See `LlmEngine`. Asks a vLLM only."""
        if not self._is_vllm:
            return None
        try:
            async with asyncio.timeout(LOAD_TIMEOUT_S):
                page = await self._client().fetch("../metrics")
        except Exception:  # of its HTTP library; a page that is missing is no failure
            return None
        return requests_waiting(page.decode(errors="replace"))

    async def stream(self, request: LlmRequest) -> AsyncGenerator[LlmEvent, None]:
        """See `LlmEngine`."""
        with self._failures("an answer"):
            async with asyncio.timeout(self._settings.first_token_timeout_s) as timeout:
                response = await self._begin(request)
                first_token_at = timeout.when()
            async with response:
                kind = response.headers.get("Content-Type", "")
                events = ServerEvents(self._settings.model, kind)
                with self._failures("an answer", events):
                    texts = read_reply(
                        response, events, self._settings, request.max_tokens, first_token_at
                    )
                    async with aclosing(texts):
                        async for text in texts:
                            yield LlmPiece(text=text, so_far=events.so_far())
        end = events.finished()
        self._has_answered |= request.id != _CANARY.id
        if events.has_odd_counts and not self._has_said_odd_counts:
            self._has_said_odd_counts = True
            log.warning("token counts of the LLM server count as 0", address=self.address)
        yield end

    async def _known_facts(self) -> ServerFacts:
        async with self._finding_out:
            return self._facts or await self._find_out()

    async def _find_out(self) -> ServerFacts:
        """Asks what the server takes, without a prompt. Raises what the client raises."""
        self._has_answered = False
        self._tokenizer.forget()
        version = await self._version()
        self._is_vllm = version is not None
        reason = ""
        try:
            system, begin = _SAMPLE_PROMPT
            self._sample_ids = await self._tokenizer.ids(system, (begin, *SAMPLE))
        except CannotTokenize as error:
            reason = str(error)
        before = self._facts or ServerFacts()
        self._facts = facts = replace(before, vllm_version=version, takes_ids=not reason)
        if self._said != (facts, reason):
            self._said = (facts, reason)
            log.info(
                "found out what the LLM server takes",
                address=self.address,
                vllm=version or "is another server",
                prompts="token ids" if facts.takes_ids else f"chat text: {reason}",
            )
        return facts

    async def _version(self) -> str | None:
        """Returns the version of vLLM; None for another server."""
        try:
            async with asyncio.timeout(CHECK_TIMEOUT_S):
                reply = await self._client().fetch("../version")
            version = msgspec.json.decode(reply, type=_Version).version
        except (StatusError, msgspec.DecodeError, ValueError):
            return None
        return well_formed(version) or None

    async def _ask_for_ids(self, body: Mapping[str, Any]) -> list[int]:
        try:
            async with asyncio.timeout(CHECK_TIMEOUT_S):
                reply = await self._client().fetch(
                    "../tokenize", {"model": self._settings.model, **body}
                )
            ids = msgspec.json.decode(reply, type=_Tokenized).tokens
        except StatusError as error:
            if self._is_vllm and error.status == 400 and "messages" in body:
                raise LlmRefusal(
                    "misfit",
                    "its chat template takes no system and user message "
                    f"({one_line(str(error))}); start vLLM with --chat-template, or choose a "
                    "model for chats",
                ) from error
            if self._is_vllm and (error.status in BUSY or error.status >= 500):
                raise
            raise CannotTokenize(f"POST /tokenize is refused (HTTP {error.status})") from error
        except (msgspec.DecodeError, ValueError) as error:
            raise CannotTokenize("POST /tokenize is not answered as vLLM does") from error
        if not ids:
            raise CannotTokenize("POST /tokenize returns no ids")
        return ids

    async def _ids(self, request: LlmRequest, facts: ServerFacts) -> tuple[int, ...]:
        """Returns the ids to send; none if the text is sent."""
        if not facts.takes_ids or not request.segments:
            return ()
        try:
            return request.token_ids or await self._tokenizer.ids(request.system, request.segments)
        except CannotTokenize as error:
            if self._said != (reason := str(error),):
                self._said = (reason,)
                log.warning("prompts of a template are sent as chat text", reason=reason)
            return ()

    async def _begin(self, request: LlmRequest) -> ClientResponse:
        """Sends a request; again, in another form, if the server refuses the form.

        A prompt that is refused as ids and as text says nothing about the form.
        """
        with_ids: ServerFacts | None = None
        while True:
            facts = await self._known_facts()
            ids = await self._ids(request, facts)
            body = request_body(request, facts, ids, self._settings)
            try:
                return await self._client().send(
                    IDS_PATH if ids else "/chat/completions", body, id=request.id
                )
            except StatusError as error:
                if self._facts is not facts:
                    continue  # another request has learned the same
                if not self._learned(error, facts, has_ids=bool(ids)):
                    self._facts = with_ids or facts
                    raise
                if ids and not self._facts.takes_ids:
                    with_ids = facts

    def _learned(self, error: StatusError, facts: ServerFacts, *, has_ids: bool) -> bool:
        """Learns from a refusal; returns False if it says nothing about the form of requests.

        A server that has answered in this form refuses the prompt, not the form.
        """
        status, detail = error.status, one_line(str(error))
        if status not in _FORM or is_too_long(detail) or self._has_answered:
            return False
        learned = after_refusal(facts, detail)
        if has_ids and (status in _NOT_THERE or learned is None):
            learned = replace(facts, takes_ids=False)
        if learned is None:
            return False
        self._facts = learned
        log.warning(
            "the LLM server refuses the form of a request; it is sent in another one",
            address=self.address,
            refusal=detail,
            prompts="token ids" if learned.takes_ids else "chat text",
            max_tokens_field=learned.max_tokens_field,
            left_out=sorted(learned.left_out),
        )
        return True

    async def close(self) -> None:
        """Closes the connections."""
        await self._tokenizer.close()
        if self._client_or_none is not None:
            await self._client_or_none.close()
            self._client_or_none = None

    @contextmanager
    def _failures(self, what: str, begun: ServerEvents | None = None) -> Iterator[None]:
        """Makes refusals of what the client raises. A refusal is raised as it is.

        `begun`: the reply that the server has begun, which it is paid for. A server that is busy
        is paid if it wrote some text before.
        """
        try:
            yield
        except Exception as error:  # see `check`
            is_sorted = isinstance(error, LlmRefusal | PromptRefused)
            refused = error if is_sorted else self._failed(error, what)
            if begun is not None and isinstance(refused, LlmRefusal):
                may_be_free = {"unreachable": True, "busy": not begun.has_text}
                is_page = isinstance(error, WrongPage)
                refused.is_paid = not (is_page or may_be_free.get(refused.kind, False))
            if is_sorted:
                raise
            raise refused from error

    def _failed(self, error: Exception, what: str) -> LlmRefusal | PromptRefused:
        return failure(error, what, model=self._settings.model, has_answered=self._has_answered)
