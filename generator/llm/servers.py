"""Several LLM servers with one model, used as one. All calls run in one event loop."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlsplit

import structlog

from generator.llm.protocol import AnswerForm, LlmEngine, LlmRefusal, LlmRequest

log = structlog.get_logger()

MISFIT_S = 120.0
"""How long a server rests whose replies cannot be read."""


class LlmServers:
    """The servers of `llm.base_url`, by their position.

    They must have the same model: one server makes the token ids of a prompt, and any server may
    get them. `check` refuses a server that makes other ids.
    """

    def __init__(self, engines: Sequence[LlmEngine]) -> None:
        self._engines = tuple(engines)
        self.labels = tuple(_label(engine.address) for engine in engines)
        """The servers in metrics: HOST:PORT, with a path if it is not /v1."""
        self._checked: set[int] = set()
        self._tokenizes = 0
        self._unread: dict[int, str] = {}
        """The kind of error that the last reply of a server raised; empty: it has answered."""

    def __len__(self) -> int:
        return len(self._engines)

    def __getitem__(self, server: int) -> LlmEngine:
        return self._engines[server]

    @property
    def form(self) -> AnswerForm:
        """The form of answers: text if all servers that have passed a check take text."""
        checked = [self._engines[server] for server in sorted(self._checked)]
        forms = {engine.form for engine in checked or self._engines}
        return "text" if forms == {"text"} else "json"

    async def check(self, server: int) -> None:
        """See `LlmEngine.check`. Refuses a server whose token ids are not those of the others."""
        self._checked.discard(server)
        engine = self._engines[server]
        await engine.check()
        for other in (self._engines[place] for place in sorted(self._checked)):
            if engine.sample_ids and other.sample_ids not in ((), engine.sample_ids):
                raise LlmRefusal(
                    "misfit",
                    f"it makes other token ids of a text than the server at {other.address}; all "
                    "servers of llm.base_url must have the same model",
                )
        self._checked.add(server)

    def answered(self, server: int) -> None:
        """Notes that an answer of a server was read: it fits."""
        self._unread[server] = ""

    def judged(self, server: int, error: Exception) -> LlmRefusal:
        """Returns why a request has no answer. An error that is no refusal is a fault of ours.

        Twice the same error in a reply, of a server that has answered nothing since it was
        unreachable: it does not fit, and rests.
        """
        name = type(error.__cause__ or error).__name__
        if not isinstance(error, LlmRefusal):
            log.error("cannot use a reply of the LLM server", exc_info=error)
            error = LlmRefusal.unreadable(error)
        if error.kind == "unreachable":
            self._unread.pop(server, None)  # another server may answer next
        if not error.is_unreadable or self._unread.get(server) == "":
            return error
        before, self._unread[server] = self._unread.get(server), name
        if before != name:
            return error
        return LlmRefusal(
            "misfit",
            f"it has answered nothing, and twice the same happened: {error}. It gets a request "
            f"every {MISFIT_S:g} s only; does base_url name an API like OpenAI's? If so, report "
            "this to Carpool's developers",
            retry_after_s=MISFIT_S,
            is_paid=True,
        )

    async def tokenize(self, request: LlmRequest) -> tuple[int, ...]:
        """See `LlmEngine.tokenize`. Asks the server that answered last, then the others.

        Raises the refusal of the last one if all refuse.
        """
        refusal: LlmRefusal | None = None
        for step in range(len(self._engines)):
            server = (self._tokenizes + step) % len(self._engines)
            try:
                ids = await self._engines[server].tokenize(request)
            except LlmRefusal as one:
                refusal = one
                continue
            self._tokenizes = server
            return ids
        assert refusal is not None, "there is a server"
        raise refusal

    async def close(self) -> None:
        """Closes all connections."""
        for engine in self._engines:
            await engine.close()


def _label(address: str) -> str:
    url = urlsplit(address)
    path = url.path.rstrip("/").removesuffix("/v1")
    return f"{url.netloc.rpartition('@')[2]}{path}" if url.netloc else address
