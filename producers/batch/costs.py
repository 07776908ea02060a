"""What the answers of a batch cost, and what those in flight may cost at most. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from schemas.answer import Usage


@dataclass(frozen=True, kw_only=True)
class Prices:
    """Money for a million tokens, and the most that the answers may cost; None: no limit.

    `prompt_tokens`: the most of a prompt; `steps`: the most prompts of a workflow, with its answer.
    """

    input: float = 0.0
    output: float = 0.0
    cost_max: float | None = None
    prompt_tokens: int = 0
    steps: int = 1

    def of(self, input_tokens: int, output_tokens: int) -> float:
        """Returns what tokens cost."""
        return (input_tokens * self.input + output_tokens * self.output) / 1e6

    def most(self, max_tokens: int | None, *, is_workflow: bool) -> float:
        """Returns the most that a question may cost whose answer has at most `max_tokens`."""
        return self.of(self.prompt_tokens, max_tokens or 0) * (self.steps if is_workflow else 1)


class Costs:
    """Tokens and cost of the answers that a model wrote, and what is reserved for lines."""

    def __init__(self, prices: Prices) -> None:
        self.prices = prices
        self.answers = self.input_tokens = self.output_tokens = 0
        self.reused = 0
        """Answers that were given before, to an equal prompt."""
        self.cost = 0.0
        self.refused = 0.0
        """The most that the question may cost which the limit holds back; 0: none."""
        self._cost_squared = 0.0
        self.twice = range(0)
        """Lines that an earlier run may have left in flight: both answers may be paid."""
        self._reserved: dict[int, float] = {}
        self._reserved_cost = 0.0

    def add(self, usage: Usage | None) -> None:
        """Takes an answer: what a server computed for it, not what was given again."""
        if usage is None or not (usage.input_tokens or usage.output_tokens):
            self.reused += usage is not None and usage.reused_tokens > 0
            return
        cost = self.prices.of(usage.input_tokens, usage.output_tokens)
        self.answers += 1
        self.input_tokens += usage.input_tokens
        self.output_tokens += usage.output_tokens
        self.cost += cost
        self._cost_squared += cost * cost

    def reserve(self, line: int, most: float) -> bool:
        """Keeps room for a question that costs at most `most`; returns False if there is none."""
        room, most = self.prices.cost_max, most * (1 + (line in self.twice))
        if room is not None and self.cost + self._reserved_cost + most > room:
            self.refused = most
            return False
        self._reserved[line] = most
        self._reserved_cost += most
        return True

    def free(self, line: int) -> None:
        """The question of a line is not in flight any more."""
        self._reserved_cost -= self._reserved.pop(line, 0.0)

    def of_more(self, answers: float) -> tuple[float, float]:
        """Returns the cost of more answers like these, and half of its 95 % interval."""
        count = max(1, self.answers)
        mean = self.cost / count
        variance = max(0.0, self._cost_squared / count - mean * mean)
        return mean * answers, 1.96 * answers * (variance / count) ** 0.5
