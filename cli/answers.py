"""Prints an answer: text, quote, citations with titles, and the time of each stage."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from schemas.answer import Answer, StepDone

STAGE_ORDER = (
    "kafka_wait",
    "window_wait",
    "encode",
    "group",
    "queue_search",
    "load",
    "search",
    "passages",
    "queue_llm",
    "ttft",
    "decode",
    "total",
)
"""The stages of a query in the order in which they happen, as `timings_ms` names them."""

ANSWERED = ("ok", "partial")
"""The statuses of an answer that has a text."""
LAST_WORDS = 5
STEP_TITLES = 5
"""Passages of a step that its line names."""
STEP_CHARS = 60
"""Characters of a step's text that its line shows."""


def stages_of(answers: Sequence[Answer]) -> tuple[str, ...]:
    """Returns the stages of these answers in order; unknown names come before the total."""
    found = {name for answer in answers for name in answer.timings_ms}
    known = [name for name in STAGE_ORDER if name in found and name != "total"]
    new = sorted(found - set(STAGE_ORDER))
    return (*known, *new, *(["total"] if "total" in found else []))


def has_evidence(answer: Answer) -> bool:
    """Returns whether an answer has a text, and a quote or passages to check it against."""
    return answer.status in ANSWERED and bool(answer.quotes or answer.retrieved)


def answer_text(answer: Answer) -> RenderableType:
    """Returns the answer, or why there is none, with the titles of its citations."""
    parts: list[RenderableType] = []
    if answer.status not in ANSWERED:
        parts.append(
            Text(
                f"{answer.status}: {answer.error.message if answer.error else 'no reason given'}",
                style="red",
            )
        )
    elif answer.answer:
        parts.append(Text(answer.answer.strip()))
    parts += [*quote_lines(answer), *citation_lines(answer)]
    return Group(*parts)


def text_after(shown: str, answer: Answer) -> Text:
    """Returns what to print after the pieces of an answer, of which `shown` was printed.

    This is the rest of the answer. If the pieces are longer than the answer, because the text began
    to repeat itself, a line says where the answer ends. A text that differs from the pieces is
    printed again.
    """
    if answer.status not in ANSWERED:
        return Text()
    text, shown = (answer.answer or "").strip(), shown.lstrip()
    if text.startswith(shown.rstrip()):
        return Text(text[len(shown) :])
    if shown.startswith(text):
        words = text.split()
        last = ("… " if len(words) > LAST_WORDS else "") + " ".join(words[-LAST_WORDS:])
        return Text(f"\n(the text repeats itself; the answer ends with “{last}”)", style="dim")
    return Text(f"\n{text}")


def quote_lines(answer: Answer) -> list[Text]:
    """Returns a line for each quote that is not the answer itself."""
    return [
        Text("  quote ", style="cyan")
        + Text(f"“{quote.text}”", style="italic")
        + Text(f"  ({quote.title or quote.doc_id})", style="dim")
        for quote in answer.quotes
        if quote.text != answer.answer
    ]


def citation_lines(answer: Answer) -> list[Text]:
    """Returns one line for each cited passage, or, without citations, for each passage found."""
    lines: list[Text] = []
    seen: set[int] = set()
    for citation in answer.citations:
        if citation.n not in seen:
            seen.add(citation.n)
            title = citation.title or citation.doc_id
            source = citation.url or (citation.doc_id if title != citation.doc_id else "")
            line = Text(f"  [{citation.n}] ", style="cyan") + Text(title, style="default")
            lines.append(line + Text(f"  ({source})" if source else "", style="dim"))
    for n in sorted({citation.n for citation in answer.invented_citations}):
        lines.append(
            Text(f"  [{n}] ", style="red") + Text("invented: the prompt has no such passage")
        )
    if not answer.citations and answer.retrieved:
        found = ", ".join(passage.id for passage in answer.retrieved if passage.in_prompt)
        lines.append(Text(f"  no citation; the model was given: {found}", style="dim"))
    return lines


def quoted(text: str) -> str:
    """Returns the begin of a text in quotation marks, as one line."""
    line = " ".join(text.split())
    return f"“{line if len(line) <= STEP_CHARS else line[: STEP_CHARS - 1].rstrip() + '…'}”"


def step_line(step: StepDone) -> Text:
    """Returns a step of a workflow as a line: what it is, its text, what was found, seconds."""
    if step.kind == "retrieve":
        titles = zip(step.titles or step.doc_ids, step.doc_ids, strict=True)
        found = "; ".join(title or id for title, id in list(titles)[:STEP_TITLES]) or "nothing"
        if (more := len(step.doc_ids) - STEP_TITLES) > 0:
            found += f"; {more} more"
        what, result = "searched", f"  found {found}"
    else:
        what, result = "wrote   ", f"  {step.tokens} tokens"
        if step.left_out:
            result += f", {len(step.left_out)} passages not in its prompt"
    line = Text(f"{step.n:>3} ", "cyan") + Text(f"{what} {quoted(step.text)}", style="default")
    return line + Text(f"{result}  {step.ms / 1_000:.2f} s", style="dim")


def timing_line(answer: Answer) -> Text:
    """Returns the time of each stage of an answer, in a line."""
    stages = stages_of([answer])
    return Text(
        "  ".join(f"{name} {answer.timings_ms[name]:,.1f}" for name in stages) + " ms"
        if stages
        else "",
        style="dim",
    )


def timing_table(answers: Sequence[Answer]) -> Table:
    """Returns a table of milliseconds: one row for each stage, one column for each answer."""
    table = Table(title="Time of every stage, ms", title_justify="left", title_style="bold")
    table.add_column("stage")
    for number in range(1, len(answers) + 1):
        table.add_column(str(number), justify="right")
    for name in stages_of(answers):
        cells = [
            f"{answer.timings_ms[name]:,.1f}" if name in answer.timings_ms else ""
            for answer in answers
        ]
        table.add_row(name, *cells, style="bold" if name == "total" else None)
    return table
