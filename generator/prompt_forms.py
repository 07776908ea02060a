"""Makes the forms of a waiting prompt: its token ids, and the blocks that a server caches."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

from generator.llm.protocol import LlmRequest
from generator.plan.order.cached_prefixes import PromptForm, form_of
from generator.plan.prompt import Template
from generator.prompts import in_order, passage_orders_of
from generator.query_in_progress import QueryInProgress
from generator.settings import GeneratorSettings


class PromptForms:
    """Makes the forms of prompts, and has a prompt sent in one of them.

    `block_tokens`: tokens of a block of the servers; 0: not known, so prompts have no forms.

    Passages are numbered in the text of a prompt, so a passage has another text, and other token
    ids, at each position. This loses no cached block: two prompts share a block only if all
    passages before it are equal, and then their numbers are equal too.
    """

    def __init__(
        self,
        tokenize: Callable[[LlmRequest], Awaitable[tuple[int, ...]]],
        settings: GeneratorSettings,
        templates: Mapping[str, Template],
    ) -> None:
        """`tokenize`: see `LlmEngine`."""
        self._tokenize = tokenize
        self._settings = settings
        self._templates = templates
        self.block_tokens = 0

    async def find(self, work: QueryInProgress) -> tuple[PromptForm, ...]:
        """Gets the token ids of a prompt and returns its forms, first the form by score.

        Returns no forms if text is sent, or while the size of blocks is not known. Raises
        `LlmRefusal`.
        """
        retrieval = work.unit.record
        orders = passage_orders_of(retrieval, work.prepared, self._settings)
        if len(orders) == 1 or not self.block_tokens:
            work.token_ids = await self._tokenize(work.prepared.request)
            return self._forms({orders[0]: work.token_ids})
        ids = {}
        for order in orders:
            prompt = in_order(work.prepared, order, retrieval, self._settings, self._templates)
            ids[order] = await self._tokenize(prompt.request)
        return self._forms(ids)

    def put_in(self, work: QueryInProgress, form: PromptForm) -> None:
        """Gives a prompt the passages of a form, in its order."""
        retrieval, prepared = work.unit.record, work.prepared
        if tuple(retrieval.hits[place] for place in form.passages) != prepared.given:
            work.prepared = in_order(
                prepared, form.passages, retrieval, self._settings, self._templates
            )
            work.token_ids = ()  # the engine makes them of the segments that it has kept

    def _forms(
        self, ids_by_order: Mapping[tuple[int, ...], Sequence[int]]
    ) -> tuple[PromptForm, ...]:
        if not self.block_tokens:
            return ()
        return tuple(
            form_of(order, ids, self.block_tokens) for order, ids in ids_by_order.items() if ids
        )
