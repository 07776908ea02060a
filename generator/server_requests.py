"""One request or check at an LLM server, from its start to the event that reports how it ended."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Literal, get_args

import structlog

from carpool.clock import Clock
from carpool.telemetry.metrics import GeneratorMetrics
from generator.llm.protocol import LlmFinished, LlmRefusal, PromptRefused, RefusalKind
from generator.llm.servers import LlmServers
from generator.outcomes import Outcomes
from generator.plan.dispatch_events import (
    DispatchEvent,
    ProbePassed,
    RequestAccepted,
    RequestEnded,
    RequestRefused,
)
from generator.plan.health import Probe
from generator.query_in_progress import QueryInProgress
from generator.stream_answer import stream_answer
from schemas.headers import tenant_of

log = structlog.get_logger()


class ServerRequests:
    """See the module. For the event loop; `troubles` may be read by any thread.

    `report` gets each event. `troubles`: what each server said last, as the end of a sentence.
    """

    def __init__(
        self,
        servers: LlmServers,
        outcomes: Outcomes,
        report: Callable[[DispatchEvent], None],
        metrics: GeneratorMetrics,
        clock: Clock,
    ) -> None:
        self._servers = servers
        self._outcomes = outcomes
        self._report = report
        self._metrics = metrics
        self._clock = clock
        self.troubles = ["has not answered yet"] * len(servers)
        # At 0, so that alerts see a rise.
        for outcome in ("answered", "canary", *get_args(RefusalKind)):
            metrics.llm_requests.labels(outcome=outcome)

    async def probe(self, server: int, probe: Probe) -> None:
        """Asks a server whether it takes prompts, or for one token."""
        try:
            if probe == "canary":
                await self._servers[server].canary()
                self._metrics.llm_requests.labels(outcome="canary").inc()
            else:
                await self._servers.check(server)
        except LlmRefusal as refusal:
            self._refused(None, server, refusal)
        else:
            self._report(ProbePassed(server=server))

    async def ask(self, work: QueryInProgress) -> None:
        """Sends a prompt to the server that was chosen for it."""
        id, server, metrics = work.id, work.server, self._metrics
        work.progress.sent_us, work.progress.first_token_us = self._clock.now_us(), None
        metrics.llm_in_flight.inc()
        metrics.llm_server_requests.labels(server=self._servers.labels[server]).inc()
        cached_tokens = None
        try:
            generated = await stream_answer(
                self._servers[server],
                replace(work.prepared.request, token_ids=work.token_ids),
                on_first_token=partial(self._first_token, work),
                on_text=partial(self._outcomes.written, work),
                on_broken=partial(self._count, work, "broken"),
            )
            work.outcome = self._outcomes.made_of(work, generated)
            self._count(work, "output", generated.finished)
        except PromptRefused as refused:
            work.outcome = refused
            metrics.llm_requests.labels(outcome="prompt_refused").inc()
        except Exception as error:
            if isinstance(error, LlmRefusal):
                refusal = error
            else:
                log.error("cannot use a reply of the LLM server", exc_info=error)
                refusal = LlmRefusal.unreadable(error)
            work.progress.trouble = str(refusal)
            self._refused(id, server, refusal)
            return
        else:
            metrics.llm_requests.labels(outcome="answered").inc()
            if generated.finished.counts_cached:
                cached_tokens = generated.finished.cached_tokens
        finally:
            metrics.llm_in_flight.dec()
        self._report(RequestEnded(id=id, cached_tokens=cached_tokens))

    def _count(
        self, work: QueryInProgress, written_as: Literal["output", "broken"], used: LlmFinished
    ) -> None:
        """Counts the tokens of a request, for its tenant."""
        tokens, tenant = self._metrics.tokens, tenant_of(work.unit.record.headers)
        tokens.add("computed", tenant, max(0, used.input_tokens - used.cached_tokens))
        tokens.add("cached", tenant, used.cached_tokens)
        tokens.add(written_as, tenant, used.output_tokens)

    def _first_token(self, work: QueryInProgress) -> None:
        now_us, progress = self._clock.now_us(), work.progress
        assert progress.sent_us is not None
        progress.first_token_us = now_us
        self._metrics.time_to_first_token_seconds.observe((now_us - progress.sent_us) / 1_000_000)
        self._report(RequestAccepted(id=work.id))

    def _refused(self, id: int | None, server: int, refusal: LlmRefusal) -> None:
        """A server refused a request; `id` None: a check or a canary."""
        self._metrics.llm_requests.labels(outcome=refusal.kind).inc()
        trouble = f"refuses: {refusal}"
        is_new, self.troubles[server] = trouble != self.troubles[server], trouble
        if is_new:
            log.warning(
                "the LLM server refuses",
                address=self._servers[server].address,
                kind=refusal.kind,
                refusal=str(refusal),
            )
        asked_us = None if refusal.retry_after_s is None else int(refusal.retry_after_s * 1_000_000)
        self._report(
            RequestRefused(
                id=id,
                server=server,
                retry_after_us=asked_us,
                refused_as=refusal.refused_as,
                is_paid=refusal.is_paid,
                is_lost=refusal.is_lost,
            )
        )
