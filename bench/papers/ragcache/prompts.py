"""Renders questions and passages as token ids, with the generator's template and tokenizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.data.evaluation import EvaluationData, read_passages
from bench.papers.ragcache.streams import Ask
from bench.simulator.prompt_cache import RenderedPrompt
from carpool.errors import ConfigError
from generator.llm.token_prompts import PromptTokenizer
from generator.plan.cached_prefixes import blocks_of
from generator.plan.prompt import Template, fill
from generator.prompts import load_templates
from generator.settings import GeneratorSettings
from schemas.record import ClusterId
from schemas.retrieval import Hit

TEMPLATE = "cited"
SEGMENTS_MAX = 100_000


class Renderer:
    """Renders each ask once, whatever streams and orders it is in. For one event loop.

    Raises `ConfigError` for a folder without a tokenizer.
    """

    def __init__(self, data: EvaluationData, model_dir: Path, *, block_tokens: int) -> None:
        from transformers import AutoTokenizer  # seconds to import

        if not (model_dir / "tokenizer.json").is_file():
            raise ConfigError(f"{model_dir} has no tokenizer.json; make it with make setup-vllm")
        tokenizer: Any = AutoTokenizer.from_pretrained(model_dir, local_files_only=True)

        async def tokenize(body: Mapping[str, Any]) -> Sequence[int]:
            text = body.get("prompt") or tokenizer.apply_chat_template(
                body["messages"], add_generation_prompt=True, tokenize=False
            )
            ids: list[int] = tokenizer.encode(text, add_special_tokens=False)
            return ids

        self._settings = GeneratorSettings()
        self._template: Template = load_templates(self._settings)[TEMPLATE]
        self._passages = read_passages(data.corpus_path)
        self._tokenizer = PromptTokenizer(tokenize, segments_max=SEGMENTS_MAX)
        self._block_tokens = block_tokens
        self._known: dict[Ask, RenderedPrompt] = {}

    async def render(self, ask: Ask) -> RenderedPrompt:
        """Returns a prompt, its passages in the order of the scores."""
        if ask not in self._known:
            filled = fill(
                self._template,
                ask.question,
                [self._hit(row) for row in ask.passages],
                passages_max=len(ask.passages),
                passage_chars_max=self._settings.passage_chars_max,
                prompt_chars_max=self._settings.prompt_chars_max,
            )
            ids = await self._tokenizer.ids(filled.system, filled.segments)
            blocks = blocks_of(ids, self._block_tokens)
            self._known[ask] = RenderedPrompt(token_ids=ids, blocks=blocks)
        return self._known[ask]

    def _hit(self, row: int) -> Hit:
        passage = self._passages[row]
        return Hit(
            doc_id=str(passage.id),
            score=0.0,
            cluster=ClusterId(0),
            title=passage.title,
            text=passage.text,
        )
