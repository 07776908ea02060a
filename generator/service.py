"""The generator as a stage: takes retrievals, asks the model, and hands over answers.

The polling thread and the event loop (`generator.requests_in_flight`) share the dispatcher under a
lock. The event loop carries out the actions, in the order in which the dispatcher returned them.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial

import msgspec
import structlog

from carpool.clock import Clock
from carpool.errors import CarpoolError
from carpool.kafka.records import TopicPartition
from carpool.loop.stage import Credit, Sink, Stage, Unit
from carpool.telemetry.metrics import Metrics
from carpool.workflow.journal import Workflows
from carpool.workflow.load import load_workflows
from carpool.workflow.program import NextSteps
from carpool.workflow.running import RunningPrograms
from carpool.workflow.settings import WorkflowSettings
from carpool.workflow.steps import AnswerStep, Generate
from generator.caches import ServerCaches
from generator.llm.protocol import LlmRefusal
from generator.llm.servers import LlmServers
from generator.outcomes import Outcomes
from generator.plan.concurrency import FIRST
from generator.plan.dispatch import Dispatcher
from generator.plan.dispatch_events import (
    CacheChanged,
    CancelRequest,
    DispatchAction,
    DispatchEvent,
    EndQuery,
    LoadSeen,
    ProbeServer,
    PromptArrived,
    PromptCancelled,
    PromptHastened,
    PromptsRevoked,
    PromptTokenized,
    ReplayCache,
    SendPrompt,
    TimePassed,
)
from generator.plan.prompt import Template
from generator.plan.queue import Prompt
from generator.plan.warm_ups import Auto, EngineLoad, Likely, NoSpeculation, SpeculationPolicy
from generator.prompts import PreparedPrompt, load_templates, prepare_prompt, reusable_key
from generator.query_in_progress import (
    QueryInProgress,
    QueryProgress,
    StepPrompts,
    StepTexts,
)
from generator.requests_in_flight import RequestsInFlight
from generator.server_requests import ServerRequests
from generator.settings import PROMPTS_A_SERVER, GeneratorSettings, LlmSettings
from generator.tracing import search_spans
from generator.warmer import Warmed, Warmer
from generator.workflow.turns import GenerateNext, SearchNext, next_turn, with_found
from schemas.errors import RecordError
from schemas.headers import tenant_of
from schemas.query import finished_steps
from schemas.retrieval import Retrieval

log = structlog.get_logger()

WAKE_US = 50_000
"""Longest wait between two ticks while there is work: a pause may begin between two ticks."""
INTAKE_BYTES_MAX = 64 * 1024 * 1024
"""Bytes of the records that wait or are in flight; more than the largest record has."""
NO_MODEL = (
    "workflow: it generates texts before its answer, and this deployment has no model "
    "(llm.engine); ask without `workflow`"
)
NOTES_MAX, NOTE_ID_CHARS_MAX = 3, 100
LOOK_S = 0.5
"""With concurrency 0: the time between two looks at a server."""


def build_stage(
    settings: GeneratorSettings,
    llm: LlmSettings,
    metrics: Metrics,
    clock: Clock,
    workflow: WorkflowSettings | None = None,
) -> GeneratorStage:
    """Returns the stage. Raises `ConfigError` for a template or a workflow that cannot be used.

    The servers, none without a model, are first checked in `start`; `not_ready` reports the result.
    """
    servers = LlmServers(())
    if llm.engine != "none":
        from generator.llm.openai_api import OpenAiLlm  # its HTTP library is not small

        settings_of_each = [msgspec.structs.replace(llm, base_url=url) for url in llm.base_urls()]
        servers = LlmServers([OpenAiLlm(each) for each in settings_of_each])
    workflows = load_workflows(workflow or WorkflowSettings())
    templates = load_templates(settings)
    return GeneratorStage(settings, llm, templates, servers, workflows, metrics, clock)


class GeneratorStage(Stage[Retrieval]):
    """While all LLM servers refuse, `credit` is zero, the queries in progress are kept, and
    `not_ready` says why.
    """

    def __init__(
        self,
        settings: GeneratorSettings,
        llm: LlmSettings,
        templates: Mapping[str, Template],
        servers: LlmServers,
        workflows: Workflows,
        metrics: Metrics,
        clock: Clock,
    ) -> None:
        self._settings = settings
        self._templates = templates
        self._servers = servers
        self._model = llm.model
        self._has_model = llm.engine != "none"
        self._metrics = metrics
        self._clock = clock
        self._lock = threading.Lock()
        endpoints = llm.kv_endpoints() if self._has_model else ()
        follows_caches = bool(endpoints)
        self._dispatcher = Dispatcher(
            concurrency=settings.concurrency or FIRST,
            prompts_max=settings.prompts_max(len(servers)),
            tries_max=llm.tries_max,
            later_us_max=llm.later_ms_max * 1_000,
            servers=len(servers),
            follows_caches=follows_caches,
        )
        self._queries: dict[int, QueryInProgress] = {}  # by prompt
        self._step_prompts = StepPrompts()
        self._queries_bytes = 0
        self._is_draining = False
        self._is_closed = False
        self._caches = ServerCaches(
            endpoints,
            servers.labels,
            lambda server, event: self._happened(CacheChanged(server=server, event=event)),
            metrics.generator,
        )
        self._requests = RequestsInFlight(servers, on_error=self._broke)
        self._warmer = Warmer(
            servers,
            _speculation(servers, follows_caches=follows_caches),
            prepare=self._prepare_draft,
            run=self._requests.prepare,
            choose=self._server_to_warm,
            load=self._load,
            block_tokens=self._block_tokens,
            metrics=metrics,
            clock=clock,
        )
        self._programs = RunningPrograms(workflows, self._charge)
        self._outcomes = Outcomes(
            servers, settings, llm.model, metrics, clock, self._note_warmth, self._programs
        )
        self._at_servers = ServerRequests(
            servers, self._outcomes, self._happened, metrics.generator, clock
        )
        metrics.workflow.steps_in_progress.labels(kind="generate").set_function(self._texts)

    # ---- the polling thread

    def start(self, sink: Sink) -> None:
        """Starts the event loop, which checks the servers."""
        self._outcomes.sink = sink
        self._requests.start()
        self._requests.soon(lambda: self._caches.start(self._requests.prepare))
        if self._has_model and self._settings.concurrency == 0:
            self._requests.soon(lambda: self._requests.prepare(self._look_at_servers()))
        self._happened(TimePassed())

    def credit(self) -> Credit:
        """Returns room for retrievals; none while all servers refuse."""
        with self._lock:
            if self._is_draining:
                return Credit(records=0, size_bytes=0)
            records = self._dispatcher.credit() if self._has_model else PROMPTS_A_SERVER
            size_bytes = INTAKE_BYTES_MAX - self._queries_bytes
        return self._programs.left_of(records, size_bytes)

    def offer(self, unit: Unit[Retrieval], now_us: int) -> None:
        """Takes a retrieval. One that needs no model, or allows no prompt, is answered at once."""
        progress = QueryProgress(arrived_us=now_us)
        with self._outcomes.ending(unit, progress):
            if unit.record.query.journal is None:
                self._answer(unit, progress, None)
                return
            unit = replace(unit, record=self._with_found(unit.record, progress))
            self._outcomes.run_program(unit, progress, partial(self._take_turn, unit, progress))

    def _take_turn(self, unit: Unit[Retrieval], progress: QueryProgress, wanted: NextSteps) -> None:
        """Does what a program has asked for. Raises `WorkflowError` and `RecordError`."""
        now_us = self._clock.now_us()
        turn = next_turn(unit.record, wanted, now_us)
        if isinstance(turn, SearchNext):
            self._outcomes.go_on(unit, turn, now_us, progress.searches)
        elif isinstance(turn, GenerateNext):
            self._generate(unit, turn, progress)
        else:
            self._answer(replace(unit, record=turn.retrieval), progress, turn.answer)

    def _with_found(self, retrieval: Retrieval, progress: QueryProgress) -> Retrieval:
        """Returns a record whose journal has the results of the searches that it brings."""
        now_us = progress.arrived_us
        found = with_found(retrieval, now_us)
        searches = finished_steps(found.query) - finished_steps(retrieval.query)
        self._metrics.workflow.steps.labels(kind="retrieve").inc(searches)
        progress.searches = search_spans(retrieval, searches, now_us)
        self._outcomes.tell_steps(retrieval, found.query, now_us)
        return found

    def _answer(
        self, unit: Unit[Retrieval], progress: QueryProgress, step: AnswerStep | None
    ) -> None:
        """Answers a query, or a workflow as `step` says. Raises `RecordError`."""
        retrieval = unit.record
        if step is not None and step.is_written:
            self._outcomes.write(unit, step.written, progress, progress.arrived_us)
            return
        prepared = self._prepare(retrieval, step)
        if prepared.is_extractive:
            self._outcomes.extract(unit, prepared, progress, progress.arrived_us)
            return
        work = QueryInProgress(
            id=unit.id,
            unit=unit,
            prepared=prepared,
            progress=progress,
            prompt_key=reusable_key(retrieval, prepared, self._settings, self._model),
        )
        self._add(work, warmed_at=self._warmer.server_of(retrieval.source.place))
        with self._lock:
            if not self._is_closed:
                self._requests.soon(partial(self._warmer.searched, retrieval))

    def _generate(self, unit: Unit[Retrieval], turn: GenerateNext, progress: QueryProgress) -> None:
        """Generates the texts of a round, side by side. Raises `RecordError`."""
        if not self._has_model:
            raise RecordError("unsupported", NO_MODEL, field="$.workflow")
        asked = [turn.retrieval_of(step) for step in turn.steps]
        prepared = [self._prepare(*each) for each in zip(asked, turn.steps, strict=True)]
        texts = StepTexts(steps=turn.steps, operations=list(progress.searches))
        with self._lock:
            ids = self._step_prompts.add(unit.id, len(prepared))
        works = [
            QueryInProgress(
                id=id,
                unit=unit,
                prepared=each,
                progress=QueryProgress(arrived_us=progress.arrived_us),
                texts=texts,
                place=place,
                prompt_key=reusable_key(asked[place], each, self._settings, self._model),
            )
            for place, (id, each) in enumerate(zip(ids, prepared, strict=True))
        ]
        for work in works:
            self._add(work)

    def _add(self, work: QueryInProgress, warmed_at: int | None = None) -> None:
        """Adds a prompt."""
        retrieval, texts = work.unit.record, work.texts
        prompt = Prompt(
            id=work.id,
            arrival_us=work.progress.arrived_us,
            priority=work.prepared.request.priority,
            deadline_us=retrieval.deadline_us,
            tenant=tenant_of(retrieval.headers),
            warmed_at=warmed_at,
            steps_done=finished_steps(retrieval.query),
            key=None if texts is None else work.prompt_key,
            digest=work.prepared.prompt_hash,
        )
        with self._lock:
            self._queries[work.id] = work
            self._queries_bytes += work.unit.message.size_bytes
        self._happened(PromptArrived(prompt=prompt))
        with self._lock:  # after its arrival: tokens of an unknown prompt are ignored
            if not self._is_closed:
                self._requests.soon(lambda: self._requests.prepare(self._tokenize(work)))

    def prompt_key(self, retrieval: Retrieval) -> str | None:
        """Returns the key of a prompt whose answer may be given again; None: of no such prompt."""
        if not self._has_model or retrieval.query.journal is not None:
            return None  # there is no model whose work could be saved, or the prompt is not known
        try:
            prepared = self._prepare(retrieval)
        except RecordError:
            return None  # `offer` answers it
        return reusable_key(retrieval, prepared, self._settings, self._model)

    def draft(self, draft: Retrieval) -> None:
        """Takes a draft of a query whose search still runs. For any thread."""
        with self._lock:
            if not self._is_closed:
                self._requests.soon(partial(self._warmer.draft, draft))

    def hasten(self, unit_id: int, priority: int, deadline_us: int | None) -> None:
        """Sends a prompt as soon as if it had this priority and deadline, unless it was sent."""
        if (work := self._get(unit_id)) is not None:
            with self._lock:
                request = replace(work.prepared.request, priority=priority)
                work.prepared = replace(work.prepared, request=request)
        self._happened(PromptHastened(id=unit_id, priority=priority, deadline_us=deadline_us))

    def cancel(self, unit_id: int) -> None:
        """Ends a query that its asker has withdrawn, unless it was answered."""
        self._outcomes.cancel_program(unit_id)
        with self._lock:
            ids = self._step_prompts.of(unit_id)
        for id in ids:
            self._happened(PromptCancelled(id=id))

    def tick(self, now_us: int, waiting: int, next_commit_at_us: int = 0) -> int | None:
        """Expires what is late, and ends pauses."""
        self._happened(TimePassed())
        self._outcomes.expire_programs(now_us)
        is_running = self._programs.records > 0
        with self._lock:
            wake_us = self._dispatcher.wake_us()
            states = [server.health.state for server in self._dispatcher.servers]
            is_idle = "probing" not in states and not (self._dispatcher.prompts or is_running)
            self._measure()
        soon_us = now_us + WAKE_US
        return wake_us if is_idle else min(soon_us, wake_us if wake_us is not None else soon_us)

    def revoke(self, unit_ids: frozenset[int], partitions: frozenset[TopicPartition]) -> None:
        """Forgets queries, and cancels their requests."""
        self._programs.forget(unit_ids)
        with self._lock:
            ids = [id for unit_id in unit_ids for id in self._step_prompts.pop(unit_id)]
        self._forget(ids)

    def _forget(self, ids: Iterable[int]) -> None:
        """Forgets prompts, and cancels their requests."""
        gone = frozenset(ids)
        for id in gone:
            self._remove(id)
        self._happened(PromptsRevoked(ids=gone))

    def drain(self, until_us: int) -> None:
        """Takes no more retrievals; the queries in progress continue."""
        with self._lock:
            self._is_draining = True

    def not_ready(self) -> Sequence[str]:
        """Returns why no server takes prompts; nothing if one does, or if there is no model.

        Returns nothing, too, while the service stops and the last answers are in progress.
        """
        with self._lock:
            is_finishing = self._is_draining and self._dispatcher.in_flight > 0
            if not self._has_model or self._dispatcher.is_open or is_finishing:
                return ()
            return tuple(
                f"LLM server at {self._servers[server].address} {trouble}"
                for server, trouble in enumerate(self._at_servers.troubles)
            )

    def notes(self) -> Sequence[str]:
        """Returns which queries wait because servers refuse them and accept others."""
        with self._lock:
            refused = self._dispatcher.refused()
            notes = [
                f"query {work.unit.record.query.query_id[:NOTE_ID_CHARS_MAX]!r} is refused since "
                f"{datetime.fromtimestamp(refusals.since_us // 1_000_000, UTC).isoformat(' ')} "
                f"(requests: {work.progress.attempts}): {work.progress.trouble}"
                for id, refusals in refused[:NOTES_MAX]
                if (work := self._queries.get(id)) is not None
            ]
        more = len(refused) - NOTES_MAX
        return (*notes, f"{more} more queries are refused") if more > 0 else tuple(notes)

    def close(self) -> None:
        """Cancels the requests in flight, and closes the connections."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        self._requests.close()

    # ---- both threads

    def _happened(self, event: DispatchEvent) -> None:
        """Passes an event to the dispatcher, and its actions to the event loop, in one order."""
        with self._lock:
            if self._is_closed:
                return
            actions = self._dispatcher.step(event, self._clock.now_us())
            if actions:
                self._requests.soon(partial(self._act, actions))

    def _measure(self) -> None:
        """Writes the metrics of the servers. The caller has the lock."""
        metrics = self._metrics.generator
        for place, server in enumerate(self._dispatcher.servers):
            label = self._servers.labels[place]
            metrics.llm_server_open.labels(server=label).set(server.is_open)
            metrics.llm_concurrency.labels(server=label).set(server.concurrency)
            if server.tree is not None:
                self._caches.measure(place, server.tree)

    def _prepare(self, retrieval: Retrieval, step: Generate | None = None) -> PreparedPrompt:
        """Returns the prompt of a retrieval. Raises `RecordError` where there can be none."""
        return prepare_prompt(
            retrieval,
            self._settings,
            self._templates,
            has_model=self._has_model,
            step=step,
        )

    def _texts(self) -> int:
        with self._lock:
            return sum(work.texts is not None for work in self._queries.values())

    def _get(self, unit_id: int) -> QueryInProgress | None:
        with self._lock:
            return self._queries.get(unit_id)

    def _remove(self, unit_id: int) -> QueryInProgress | None:
        with self._lock:
            work = self._queries.pop(unit_id, None)
            if work is not None:
                self._queries_bytes -= work.unit.message.size_bytes
            return work

    # ---- the event loop

    def _prepare_draft(self, draft: Retrieval) -> PreparedPrompt | None:
        if draft.query.journal is not None:
            return None
        try:
            prepared = self._prepare(draft)
        except RecordError:
            return None  # the final retrieval is refused
        return None if prepared.is_extractive else prepared

    def _server_to_warm(self, token_ids: tuple[int, ...], warm_ups: Sequence[int]) -> int:
        with self._lock:
            return self._dispatcher.server_to_warm(token_ids, warm_ups)

    def _block_tokens(self, server: int) -> int:
        with self._lock:
            tree = self._dispatcher.servers[server].tree
            return 0 if tree is None else tree.block_tokens

    def _load(self, server: int, warm_ups: int) -> EngineLoad:
        """Returns the load of a server with so many warm-ups; a prompt waits if it refuses."""
        with self._lock:
            one = self._dispatcher.servers[server]
            return EngineLoad(
                in_flight=one.in_flight + warm_ups,
                waiting=max(self._dispatcher.waiting, self._is_draining or not one.is_open),
                limit=one.concurrency,
            )

    def _act(self, actions: tuple[DispatchAction, ...]) -> None:
        for action in actions:
            try:
                self._do(action)
            except Exception as error:  # the event loop would only log it, and lose the query
                self._broke(getattr(action, "id", None), error)

    def _do(self, action: DispatchAction) -> None:
        match action:
            case SendPrompt(id=id, attempt=attempt, server=server):
                if (work := self._get(id)) is not None:  # else revoked: a CancelRequest follows
                    work.progress.attempts, work.server = attempt, server
                    self._warmer.make_room(server)
                    self._requests.send(id, self._at_servers.ask(work))
            case ProbeServer(server=server, probe=probe):
                self._requests.prepare(self._at_servers.probe(server, probe))
            case ReplayCache(server=server, replay_from=first):
                self._caches.replay(server, first)
            case CancelRequest(id=id):
                if self._requests.cancel(id):
                    self._metrics.generator.llm_requests.labels(outcome="cancelled").inc()
            case EndQuery(id=id):
                if (work := self._remove(id)) is not None:  # else revoked
                    try:
                        self._end(action, work)
                    except Exception as error:  # `work` is not found by its id any more
                        self._charge(work.unit.id, error)

    def _end(self, action: EndQuery, work: QueryInProgress) -> None:
        other = action.text_of
        if other is not None and not self._outcomes.share(self._get(other), work):
            self._add(work)  # the other one was revoked, or its prompt refused
            return
        self._outcomes.end(action.how, work)
        if work.texts is not None and work.texts.is_over:
            with self._lock:
                beside = self._step_prompts.pop(work.unit.id)
            self._forget(beside)

    def _broke(self, id: int | None, error: Exception) -> None:
        """Ends the try of the query `id` after an unexpected error; without one, the service."""
        if id is not None:
            work = self._get(id)
            self._charge(id if work is None else work.unit.id, error)
            return
        log.error("the generator failed with an unexpected error", exc_info=error)
        what = f"{type(error).__name__}: {error}"
        self._outcomes.fail(
            CarpoolError(
                f"the generator failed ({what}), not on a query; the log shows where. The queries "
                "in progress are not acknowledged, so they are answered after the restart."
            )
        )

    def _charge(self, unit_id: int, error: Exception) -> None:
        self.revoke(frozenset({unit_id}), frozenset())
        self._outcomes.charge(unit_id, error)

    async def _look_at_servers(self) -> None:
        """Asks the servers without end how many requests wait in them."""
        while True:
            await asyncio.sleep(LOOK_S)
            for server in range(len(self._servers)):
                waiting = await self._servers[server].waiting()
                self._happened(LoadSeen(server=server, waiting=waiting))

    async def _tokenize(self, work: QueryInProgress) -> None:
        """Finds out the ids of a prompt while it waits."""
        try:
            work.token_ids = await self._servers.tokenize(work.prepared.request)
        except LlmRefusal:
            return  # the request finds out, and reports it
        except Exception as error:
            self._broke(work.id, error)
            return
        if work.token_ids and self._caches.are_followed:
            self._happened(PromptTokenized(id=work.id, token_ids=work.token_ids))

    def _note_warmth(self, work: QueryInProgress, cached_tokens: int) -> Warmed:
        """Tells the warmer how many tokens were cached; returns what was warmed for the prompt."""
        progress, wait_us = work.progress, None
        if progress.attempts == 1 and progress.first_token_us is not None:
            wait_us = progress.first_token_us - progress.arrived_us
        place = work.unit.record.source.place
        return self._warmer.answered(place, work.token_ids, cached_tokens, wait_us)


def _speculation(servers: LlmServers, *, follows_caches: bool) -> SpeculationPolicy:
    """Returns the policy of warm-ups: none where a prompt may miss the server that was warmed."""
    if len(servers) == 1 or follows_caches:
        return Auto(Likely())
    if len(servers):
        log.info("several LLM servers are warmed only if llm.kv_events says what they have cached")
    return NoSpeculation()
