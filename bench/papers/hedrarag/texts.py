"""What a small model writes in workflows: runs their programs with it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from carpool.errors import ConfigError
from carpool.testing.run_program import run
from carpool.workflow.program import Program
from carpool.workflow.steps import Found, Retrieve, Step
from generator.plan.prompt import FilledPrompt
from generator.prompts import fill_step, load_templates
from generator.settings import GeneratorSettings

SETTINGS = GeneratorSettings()
TEMPLATES = load_templates(SETTINGS)

Search = Callable[[str], Found]
Write = Callable[[FilledPrompt, int], str]
"""From a prompt and the most tokens to a text."""


class Steps(msgspec.Struct, frozen=True):
    """What a workflow searched and wrote for a question, in order, without its answer."""

    program: str
    question: str
    searched: list[str] = []
    written: list[str] = []


def run_program(program: Program, question: str, search: Search, write: Write) -> Steps:
    """Returns the steps of a question."""
    done = Steps(program.name, question)

    def result(step: Step) -> Found | str:
        if isinstance(step, Retrieve):
            done.searched.append(step.text)
            return search(step.text)
        done.written.append(write(fill_step(step, SETTINGS, TEMPLATES), step.max_tokens))
        return done.written[-1]

    run(program, result, question=question)
    return done


def open_model(folder: Path) -> Write:
    """Returns a model that writes greedily, by transformers on the CPU."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    if not (folder / "config.json").is_file():
        raise ConfigError(f"{folder} has no model: deploy/demo/prepare_model.py makes one")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)

    def write(prompt: FilledPrompt, tokens_max: int) -> str:
        chat = [
            {"role": "system", "content": prompt.system},
            {"role": "user", "content": prompt.user},
        ]
        given = tokenizer.apply_chat_template(
            chat, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        made = model.generate(**given, max_new_tokens=tokens_max, do_sample=False)
        new = made[0, given["input_ids"].shape[1] :]
        text: str = tokenizer.decode(new, skip_special_tokens=True)
        return text.strip()

    return write
