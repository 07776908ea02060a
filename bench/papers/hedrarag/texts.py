"""What a small model writes in workflows: runs their programs for many questions side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from carpool.errors import ConfigError
from carpool.workflow.program import Program
from carpool.workflow.steps import Found, Generate, Retrieve, Said
from generator.plan.prompt import FilledPrompt
from generator.prompts import fill_step, load_templates
from generator.settings import GeneratorSettings

BATCH = 32

Search = Callable[[Sequence[str]], Sequence[Found]]
Write = Callable[[Sequence[FilledPrompt], int], Sequence[str]]
"""From prompts and the most tokens to texts."""


class Steps(msgspec.Struct, frozen=True):
    """What a workflow searched and wrote for a question, in order, without its answer."""

    program: str
    question: str
    searched: list[str] = []
    written: list[str] = []


def run_program(
    program: Program, questions: Sequence[str], search: Search, write: Write
) -> list[Steps]:
    """Returns the steps of each question. All must ask for steps of one kind at the same time."""
    settings = GeneratorSettings()
    templates = load_templates(settings)
    found = [Steps(program.name, question) for question in questions]
    runs = [program.function(question) for question in questions]
    asked = [next(run) for run in runs]
    while True:
        results: Sequence[Found | Said]
        if searches := [step.text for step in asked if isinstance(step, Retrieve)]:
            results = search(searches)
        else:
            steps = [step for step in asked if isinstance(step, Generate)]
            prompts = [fill_step(step, settings, templates) for step in steps]
            results = list(map(Said, write(prompts, steps[0].max_tokens)))
        for one, step, result in zip(found, asked, results, strict=True):
            if isinstance(step, Retrieve):
                one.searched.append(step.text)
            else:
                one.written.append(str(result))
        try:
            asked = [run.send(result) for run, result in zip(runs, results, strict=True)]
        except StopIteration:
            return found


def open_model(folder: Path) -> Write:
    """Returns a model that writes greedily, by transformers on the CPU. Blocks.

    Raises `ConfigError` where the folder has none.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    if not (folder / "config.json").is_file():
        raise ConfigError(f"{folder} has no model: deploy/demo/prepare_model.py makes one")
    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)

    def write(prompts: Sequence[FilledPrompt], tokens_max: int) -> list[str]:
        texts: list[str] = []
        for first in range(0, len(prompts), BATCH):
            chats = [
                [{"role": "system", "content": one.system}, {"role": "user", "content": one.user}]
                for one in prompts[first : first + BATCH]
            ]
            given = tokenizer.apply_chat_template(
                chats,
                add_generation_prompt=True,
                padding=True,
                return_tensors="pt",
                return_dict=True,
            )
            made = model.generate(
                **given,
                max_new_tokens=tokens_max,
                do_sample=False,
                pad_token_id=tokenizer.eos_token_id,
            )
            new = made[:, given["input_ids"].shape[1] :]
            texts += map(str.strip, tokenizer.batch_decode(new, skip_special_tokens=True))
        return texts

    return write
