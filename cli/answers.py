"""Prints an answer: text, what it is cited for, its quote, and the time of each stage."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from schemas.answer import Answer, Citation, Quote, StepDone

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
    *order, total = STAGE_ORDER
    new = sorted(found - {*order, total})
    return tuple(name for name in (*order, *new, total) if name in found)


def has_evidence(answer: Answer) -> bool:
    """Returns whether an answer has a text, and a quote or passages to check it against."""
    return answer.status in ANSWERED and bool(answer.quotes or answer.retrieved)


def answer_text(answer: Answer) -> RenderableType:
    """Returns the answer, or why there is none, with what it can be checked by."""
    parts: list[RenderableType] = []
    if answer.status not in ANSWERED:
        why = answer.error.message if answer.error else "no reason given"
        parts.append(Text(f"{answer.status}: {why}", style="red"))
    elif answer.answer:
        parts.append(Text(answer.answer.strip()))
    parts += evidence_lines(answer)
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


def evidence_lines(answer: Answer) -> list[Text]:
    """Returns what an answer can be checked by, a line each.

    These are its citations with the sentence that supports them, markers of no passage, the quote,
    unless it was shown, and, where no passage supports the answer, that this is so.
    """
    lines = [_citation_line(citation) for citation in answer.citations]
    for n in sorted({citation.n for citation in answer.invented_citations}):
        no_passage = Text("invented: the prompt has no such passage")
        lines.append(Text(f"  [{n}] ", style="red") + no_passage)
    shown = {answer.answer, *(each.snippet for each in answer.citations if each.quote)}
    for quote in answer.quotes:
        if quote.text not in shown:
            lines.append(Text("  quote ", "cyan") + _sentence(quote.text, quote))
    if answer.grounded is False:
        given = ", ".join(each.id for each in answer.retrieved if each.in_prompt) or "none"
        no_support = (
            f"  no passage supports this answer, or it says so itself; the model was given: {given}"
        )
        lines.append(Text(no_support, style="yellow"))
    return [line for place, line in enumerate(lines) if line not in lines[:place]]


def _citation_line(citation: Citation) -> Text:
    line = Text("  source " if citation.by == "text" else f"  [{citation.n}] ", style="cyan")
    if citation.quote is not None:
        return line + _sentence(citation.snippet, citation)
    line += Text(citation.title or citation.doc_id, style="default") + _source(citation)
    is_checked = citation.by is not None
    return line + Text("  no sentence of it supports the answer" if is_checked else "", "yellow")


def _sentence(text: str, of: Citation | Quote) -> Text:
    title = Text(f"  {of.title or of.doc_id}", style="default")
    return Text(f"“{text}”", style="italic") + title + _source(of)


def _source(of: Citation | Quote) -> Text:
    source = of.url or (of.doc_id if of.title not in ("", of.doc_id) else "")
    return Text(f"  ({source})" if source else "", style="dim")


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
    times = [f"{name} {answer.timings_ms[name]:,.1f}" for name in stages_of([answer])]
    return Text("  ".join(times) + " ms" if times else "", style="dim")


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
