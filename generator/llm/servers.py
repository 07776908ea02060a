"""Several LLM servers with one model, used as one. All calls run in one event loop."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlsplit

from generator.llm.protocol import LlmEngine, LlmRefusal, LlmRequest


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

    def __len__(self) -> int:
        return len(self._engines)

    def __getitem__(self, server: int) -> LlmEngine:
        return self._engines[server]

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
