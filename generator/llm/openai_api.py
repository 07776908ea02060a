"""A server with OpenAI's API, such as vLLM: streamed chat completions that follow a JSON Schema."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

import openai
from openai import AsyncOpenAI, AsyncStream, DefaultAsyncHttpxClient, Timeout
from openai.types import CompletionUsage
from openai.types.chat import ChatCompletionChunk

from carpool.terminal import without_password
from generator.llm.protocol import (
    AnswerForm,
    LlmEvent,
    LlmFinished,
    LlmPiece,
    LlmRefusal,
    LlmRequest,
    PromptRefused,
)
from generator.settings import LlmSettings

CHECK_TIMEOUT_S = 10.0
SCHEMA_NAME = "cited_answer"
_DETAIL_CHARS_MAX = 300
_NO_CONNECTION = (
    "ConnectError",
    "ConnectTimeout",
    "PoolTimeout",
    "ProxyError",
    "UnsupportedProtocol",
)
"""Errors of the client's HTTP library: httpx or httpx2, after its version."""
_LOOPBACK = ("127.0.0.1", "::1", "localhost")
_TOO_LONG = (
    "maximum context length",
    "context_length_exceeded",
    "max_model_len",
    "longer than the maximum",
    "too long",
)


class OpenAiLlm:
    """See `LlmEngine`. Makes its client at the first call, in the event loop. Does not retry."""

    def __init__(self, settings: LlmSettings) -> None:
        self._settings = settings
        self._client_or_none: AsyncOpenAI | None = None
        self._has_answered = False
        self._is_vllm = False

    @property
    def form(self) -> AnswerForm:
        """See `LlmEngine`. `auto`: text where the server is a vLLM, which keeps its form."""
        chosen = self._settings.answer_form
        if chosen == "auto":
            return "text" if self._is_vllm else "json"
        return chosen

    @property
    def address(self) -> str:
        """The server's URL; stars in place of a password."""
        return without_password(self._settings.base_url)

    def _client(self) -> AsyncOpenAI:
        if self._client_or_none is None:
            settings = self._settings
            timeout = Timeout(None, connect=settings.connect_timeout_s)
            self._client_or_none = AsyncOpenAI(
                base_url=settings.base_url,
                api_key=settings.api_key.value
                or "none",  # the client requires one; servers without keys ignore it
                max_retries=0,
                timeout=timeout,
                http_client=DefaultAsyncHttpxClient(
                    timeout=timeout, trust_env=urlsplit(settings.base_url).hostname not in _LOOPBACK
                ),
            )
        return self._client_or_none

    async def check(self) -> None:
        """Lists the models. Raises `LlmRefusal` without an answer, or if the model is missing."""
        try:
            async with asyncio.timeout(CHECK_TIMEOUT_S):
                page = await self._client().models.list()
            names = [model.id for model in page.data]
            self._is_vllm = any(model.owned_by == "vllm" for model in page.data)
        except openai.NotFoundError as error:
            raise LlmRefusal(
                "unreachable",
                f"it lists no models ({_detail(error)}); base_url ends in /v1, for vLLM",
            ) from error
        except Exception as error:  # errors of its HTTP library, which depends on its version
            raise self._failure(error, "the list of its models") from error
        if self._settings.model not in names:
            listed = ", ".join(names[:10]) or "none"
            raise LlmRefusal(
                "model_missing",
                f"it has no model {self._settings.model!r}, only: {listed}; set llm.model to one "
                "of these",
            )

    async def stream(self, request: LlmRequest) -> AsyncGenerator[LlmEvent, None]:
        """See `LlmEngine`."""
        ended = _AnswerEnd(model=self._settings.model)
        try:
            async with asyncio.timeout(self._settings.first_token_timeout_s) as timeout:
                response = await self._client().chat.completions.create(**self._body(request))
                first_token_at = timeout.when()
            async with response:
                async for text in self._pieces(response, ended, first_token_at):
                    yield LlmPiece(text=text, so_far=ended.so_far())
        except (LlmRefusal, PromptRefused):
            raise
        except Exception as error:  # see `check`
            raise self._failure(error, "an answer") from error
        self._has_answered = True
        yield ended.finished()

    def _body(self, request: LlmRequest) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self._settings.model,
            "messages": [
                {"role": "system", "content": request.system},
                {"role": "user", "content": request.user},
            ],
            "max_tokens": request.max_tokens,
            "temperature": request.temperature,
            "stream": True,
            "stream_options": {"include_usage": True},
            "extra_headers": {"X-Request-Id": request.id},
        }
        if request.seed is not None:
            body["seed"] = request.seed
        if request.schema is not None:
            schema = {"name": SCHEMA_NAME, "schema": dict(request.schema), "strict": True}
            body["response_format"] = {"type": "json_schema", "json_schema": schema}
        if extra := self._extra(request):
            body["extra_body"] = extra
        if self._is_vllm:  # the counts of an answer that is ended early
            body["stream_options"]["continuous_usage_stats"] = True
        return body

    def _extra(self, request: LlmRequest) -> dict[str, Any]:
        """Returns the fields that OpenAI's API does not have: those of vLLM."""
        extra: dict[str, Any] = {}
        if self._settings.sends_priority:
            extra["priority"] = request.priority
        if self._is_vllm and request.regex is not None:
            extra["structured_outputs"] = {"regex": request.regex}
        return extra

    async def _pieces(
        self,
        response: AsyncStream[ChatCompletionChunk],
        ended: _AnswerEnd,
        first_token_at: float | None,
    ) -> AsyncIterator[str]:
        """Yields the text of each chunk. Raises what the client raises, and TimeoutError."""
        chunks = response.__aiter__()
        deadline = first_token_at
        while True:
            async with asyncio.timeout_at(deadline):
                chunk = await anext(chunks, None)
            if chunk is None:
                break
            text = ended.take(chunk)
            if text or deadline != first_token_at:
                deadline = asyncio.get_running_loop().time() + self._settings.next_token_timeout_s
            if text:
                yield text
        if ended.finish_reason is None:
            raise LlmRefusal(
                "broken",
                "it ended its answer without a finish_reason: the connection or the server failed",
            )

    async def close(self) -> None:
        """Closes the connections."""
        if self._client_or_none is not None:
            await self._client_or_none.close()
            self._client_or_none = None

    def _failure(self, error: Exception, what: str) -> LlmRefusal | PromptRefused:
        """Sorts an error of the client into a refusal of the server or of the prompt."""
        cause = error.__cause__ or error
        detail = without_password(f"{type(cause).__name__}: {cause}")[:_DETAIL_CHARS_MAX]
        if type(cause).__name__ in _NO_CONNECTION:
            return LlmRefusal(
                "unreachable",
                f"it cannot be reached ({detail}); is it running, and is base_url right?",
            )
        if isinstance(error, TimeoutError | openai.APITimeoutError):
            return LlmRefusal(
                "timeout",
                f"it sent nothing more of {what}; it hangs or is overloaded (the timeouts are "
                "llm.*_timeout_s)",
            )
        if isinstance(error, openai.APIStatusError):
            return self._refusal(error, error.status_code)
        return LlmRefusal("broken", f"it failed during {what}, or violated its protocol ({detail})")

    def _refusal(self, error: openai.APIStatusError, status: int) -> LlmRefusal | PromptRefused:
        detail = f"HTTP {status}: {_detail(error)}"
        retry_after_s = _retry_after_s(error.response.headers)
        if status in (409, 425, 429, 503):
            return LlmRefusal(
                "busy", f"it takes no more work now ({detail})", retry_after_s=retry_after_s
            )
        if status in (401, 403, 407):
            return LlmRefusal(
                "forbidden", f"it refuses the key ({detail}); set CARPOOL_LLM_API_KEY"
            )
        if status == 404:
            return LlmRefusal(
                "model_missing",
                f"it has no model {self._settings.model!r} ({detail}); set llm.model to one that "
                "it lists",
            )
        if status == 408:
            return LlmRefusal(
                "timeout", f"it gave up on the request ({detail})", retry_after_s=retry_after_s
            )
        if status in (502, 504):
            return LlmRefusal(
                "unreachable", f"a proxy does not reach it ({detail})", retry_after_s=retry_after_s
            )
        if status >= 500:
            return LlmRefusal("broken", f"it failed ({detail})", retry_after_s=retry_after_s)
        if self._has_answered or any(words in detail.lower() for words in _TOO_LONG):
            return PromptRefused(f"the LLM server refuses this prompt ({detail})")
        return LlmRefusal(
            "misfit",
            f"it refuses a request, and has answered none so far ({detail}): does it know "
            "`response_format`, and `priority` if llm.sends_priority is on?",
        )


class _AnswerEnd:
    """Collects the fields of `LlmFinished` over the chunks of one answer."""

    def __init__(self, model: str) -> None:
        self.finish_reason: str | None = None
        self._model = model
        self._usage: CompletionUsage | None = None

    def take(self, chunk: ChatCompletionChunk) -> str:
        """Returns the text of the chunk, perhaps empty. Raises any error for a malformed chunk."""
        self._model = chunk.model or self._model
        self._usage = chunk.usage or self._usage
        if not chunk.choices:
            return ""
        choice = chunk.choices[0]
        self.finish_reason = choice.finish_reason or self.finish_reason
        text = choice.delta.content or ""
        # JSON cannot encode lone surrogates, so they are replaced.
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")

    def so_far(self) -> LlmFinished | None:
        """Returns the counts up to here, of a server that sends them with each piece."""
        return None if self._usage is None else self.finished()

    def finished(self) -> LlmFinished:
        """Returns the end; tokens that the server did not count are 0."""
        usage = self._usage
        details = usage.prompt_tokens_details if usage else None
        return LlmFinished(
            finish_reason=self.finish_reason or "stop",
            model=self._model,
            input_tokens=usage.prompt_tokens if usage else 0,
            output_tokens=usage.completion_tokens if usage else 0,
            cached_tokens=(details.cached_tokens or 0) if details else 0,
        )


def _detail(error: openai.APIStatusError) -> str:
    body = error.body
    message = body.get("message") if isinstance(body, dict) else body
    return " ".join(str(message or error.message).split())[:_DETAIL_CHARS_MAX]


def _retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Returns the wait in the headers: milliseconds, seconds, or a date by the server's clock."""
    for name, units_a_second in (("retry-after-ms", 1_000), ("retry-after", 1)):
        try:
            return max(0.0, float(headers[name]) / units_a_second)
        except (KeyError, ValueError):
            continue
    try:
        wait = parsedate_to_datetime(headers["retry-after"]) - parsedate_to_datetime(
            headers["date"]
        )
    except (KeyError, ValueError, TypeError):
        return None
    return max(0.0, wait.total_seconds())
