"""Workflows as graphs: `RAGraph` as in the paper's Listing 1, and the JSON form of a query. Pure.

HedraRAG 4.1: nodes generate or search, edges say what comes next. A graph is run as a program: it
yields the step of each node, and keeps the outputs by name. `input` and `query` are the question.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final, TypeAlias

import msgspec

from carpool.workflow.program import STEPS_MAX, Program, Run, text_digest
from carpool.workflow.steps import AnswerStep, Found, Generate, Retrieve, WorkflowError
from schemas.workflow import Condition, Graph, GraphEdge

START: Final = "START"
END: Final = "END"
QUESTION = ("input", "query")
NO_OUTPUTS = frozenset({*QUESTION, "rounds", *(each.name for each in fields(Generate)), "self"})
"""Names that an output cannot have: they name the question, visits of a node, or an argument."""
PLACEHOLDER = re.compile(r"\{(\w+)\}")
INLINE = "graph"
"""The name of the program of a graph that a query brings along."""

_encoder = msgspec.json.Encoder(order="deterministic")
Node: TypeAlias = int | str
State: TypeAlias = dict[str, Any]
"""The outputs so far, by name: `str` for the question, `Said` and `Found` for those of nodes."""
Next: TypeAlias = Node | Callable[[Mapping[str, Any]], Node]


@dataclass(frozen=True, slots=True)
class _Generation:
    prompt: str | None
    template: str
    output: str
    max_tokens: int | None


@dataclass(frozen=True, slots=True)
class _Retrieval:
    query: str
    output: str
    top_k: int | None


class RAGraph:
    """A graph of generations and searches (HedraRAG 4.1, Listing 1)."""

    def __init__(self) -> None:
        self._nodes: dict[Node, _Generation | _Retrieval] = {}
        self._next: dict[Node, Next] = {}

    def add_generation(
        self,
        node: Node,
        *,
        prompt: str | None = None,
        template: str = "",
        output: str = "",
        max_tokens: int | None = None,
    ) -> None:
        """Adds a node that asks the model. `prompt`: text with outputs in braces, as `{docs}`.

        `template` instead: the name of a prompt template, which gets all texts by name, the
        question as `question`, and what was found last as `passages`.
        """
        self._add(node, _Generation(prompt, template, output or f"output_{node}", max_tokens))

    def add_retrieval(
        self, node: Node, *, query: str, output: str = "docs", topk: int | None = None
    ) -> None:
        """Adds a node that searches the output `query`."""
        self._add(node, _Retrieval(query, output, topk))

    def add_edge(self, node: Node, to: Next) -> None:
        """Says what comes after a node: another one, or a function of the outputs by name.

        The function also finds `rounds`: how often this node has run.
        """
        if node in self._next:
            raise WorkflowError(f"node {node!r} has two edges; use a function for conditions")
        self._next[node] = to

    def program(self, name: str, *, version: int = 1, steps_max: int = STEPS_MAX) -> Program:
        """Returns the graph as a program. Raises `WorkflowError` that names a node that is wrong.

        The digest is that of nodes, and of the names of functions: raise `version` with a change.
        """
        self._check()
        edges = {node: getattr(to, "__qualname__", to) for node, to in self._next.items()}
        text = repr((list(self._nodes.items()), list(edges.items())))
        return Program(
            name=name,
            version=version,
            function=self.run,
            digest=text_digest(text),
            steps_max=steps_max,
            summary=f"a graph of {len(self._nodes)} nodes",
        )

    def run(self, question: str) -> Run:
        """Runs the graph. The answer is what the last generation wrote."""
        state: State = dict.fromkeys(QUESTION, question)
        visits: Counter[Node] = Counter()
        said, passages = None, Found()
        at = self._after(START, state)
        while at != END:
            node = self._nodes[at]
            visits[at] += 1
            state["rounds"] = visits[at]
            if isinstance(node, _Retrieval):
                text = _output(state, node.query, at)
                if isinstance(text, Found):
                    raise WorkflowError(f"node {at!r} searches passages; name a text as query")
                state[node.output] = passages = yield Retrieve(str(text), node.top_k)
            elif self._next.get(at) == END:
                return AnswerStep(
                    node.template,
                    prompt=node.prompt,
                    max_tokens=node.max_tokens,
                    **_values(node, state, at, passages),
                )
            else:
                step = Generate(
                    node.template,
                    prompt=node.prompt,
                    max_tokens=node.max_tokens,
                    **_values(node, state, at, passages),
                )
                said = yield step
                state[node.output] = said
                passages = step.passages or passages
            at = self._after(at, state)
        if said is None:
            raise WorkflowError("it came to END before a node wrote a text, so there is no answer")
        return AnswerStep(text=said, passages=passages)

    def _add(self, node: Node, what: _Generation | _Retrieval) -> None:
        if node in self._nodes or node in (START, END):
            raise WorkflowError(f"node {node!r}: another node, START or END has this name")
        if what.output in NO_OUTPUTS:
            raise WorkflowError(f"node {node!r}: an output cannot be named {what.output!r}")
        if isinstance(what, _Generation) and bool(what.template) == (what.prompt is not None):
            raise WorkflowError(f"node {node!r} needs a prompt or a template, and not both")
        self._nodes[node] = what

    def _after(self, node: Node, state: State) -> Node:
        to = self._next.get(node)
        if callable(to):
            to = to(state)
        if to is None or (to != END and to not in self._nodes):
            raise WorkflowError(f"node {node!r} leads to {to!r}, and there is no such node")
        return to

    def _check(self) -> None:
        if START not in self._next:
            raise WorkflowError("no edge begins at START")
        for node, to in self._next.items():
            if node != START and node not in self._nodes:
                raise WorkflowError(f"an edge begins at {node!r}, and there is no such node")
            if not callable(to) and to != END and to not in self._nodes:
                raise WorkflowError(f"node {node!r} leads to {to!r}, and there is no such node")
        for node in self._nodes:
            if node not in self._next:
                raise WorkflowError(f"node {node!r} has no edge; the last one leads to END")
        outputs = {node.output for node in self._nodes.values()} | {*QUESTION}
        for at, what in self._nodes.items():
            for name in _names(what):
                if name not in outputs:
                    raise WorkflowError(
                        f"node {at!r} uses {{{name}}}, and no node has this output; there are: "
                        f"{', '.join(sorted(outputs))}"
                    )


def _names(node: _Generation | _Retrieval) -> list[str]:
    if isinstance(node, _Retrieval):
        return [node.query]
    return PLACEHOLDER.findall(node.prompt or "")


def _values(node: _Generation, state: State, at: Node, passages: Found) -> dict[str, Any]:
    if node.prompt is None:
        texts = {name: value for name, value in state.items() if not isinstance(value, Found)}
        return {"question": state["input"], **texts, "passages": passages}
    return {name: _output(state, name, at) for name in dict.fromkeys(_names(node))}


def _output(state: State, name: str, at: Node) -> Any:
    if name not in state:
        raise WorkflowError(f"node {at!r} uses {{{name}}}, which no node has made yet")
    return state[name]


def program_of(graph: Graph) -> Program:
    """Returns the program of a graph in JSON. Raises `WorkflowError` that names a node."""
    ours = RAGraph()
    for node in graph.nodes:
        if node.query is not None and (node.prompt is not None or node.template is not None):
            raise WorkflowError(f"node {node.id!r} has a query and a prompt; make it two nodes")
        if node.query is not None:
            ours.add_retrieval(
                node.id, query=node.query, output=node.output or "docs", topk=node.top_k
            )
        else:
            ours.add_generation(
                node.id,
                prompt=node.prompt,
                template=node.template or "",
                output=node.output or "",
                max_tokens=node.max_tokens,
            )
    by_source: dict[str, list[GraphEdge]] = {}
    for edge in graph.edges:
        by_source.setdefault(edge.source, []).append(edge)
    for source, edges in by_source.items():
        only = edges[0] if len(edges) == 1 and edges[0].when is None else None
        ours.add_edge(source, only.to if only is not None else _choice(source, edges))
    program = ours.program(INLINE)
    _check_ends(graph, by_source)
    return replace(program, digest=text_digest(_encoder.encode(graph).decode()))


def _choice(source: str, edges: Sequence[GraphEdge]) -> Callable[[Mapping[str, Any]], Node]:
    def chosen(state: Mapping[str, Any]) -> Node:
        for edge in edges:
            if edge.when is None or _holds(edge.when, state):
                return edge.to
        raise WorkflowError(f"node {source!r}: no condition of its edges holds; add one without")

    return chosen


def _holds(condition: Condition, state: Mapping[str, Any]) -> bool:
    argument = condition.argument
    if condition.test == "rounds_at_most":
        return int(state["rounds"]) <= int(argument or 0)
    value = state.get(condition.value or "", "")
    text = " ".join(hit.text for hit in value) if isinstance(value, Found) else str(value)
    text, wanted = text.strip().casefold(), str(argument).strip().casefold()
    match condition.test:
        case "not_empty":
            return bool(text)
        case "empty":
            return not text
        case "equals":
            return text == wanted
        case "contains":
            return wanted in text


def _check_ends(graph: Graph, by_source: Mapping[str, Sequence[GraphEdge]]) -> None:
    """Raises `WorkflowError` where END cannot be reached, or an edge has no complete condition."""
    for edge in graph.edges:
        if edge.to != END and edge.to not in {node.id for node in graph.nodes}:
            raise WorkflowError(f"node {edge.source!r} leads to {edge.to!r}; there is no such node")
        when = edge.when
        if when is not None and when.test == "rounds_at_most" and type(when.argument) is not int:
            raise WorkflowError(f"node {edge.source!r}: rounds_at_most needs a number as argument")
        if when is not None and when.test != "rounds_at_most" and when.value is None:
            raise WorkflowError(f"node {edge.source!r}: {when.test} needs the value that it tests")
        if when is not None and when.test in ("equals", "contains") and when.argument is None:
            raise WorkflowError(f"node {edge.source!r}: {when.test} needs an argument")
    seen, open_nodes = set[str](), [str(START)]
    while open_nodes:
        at = open_nodes.pop()
        seen.add(at)
        open_nodes += [edge.to for edge in by_source.get(at, ()) if edge.to not in seen]
    if END not in seen:
        raise WorkflowError("no path leads from START to END: the graph would not end")
    for node in graph.nodes:
        if node.id not in seen:
            raise WorkflowError(f"node {node.id!r} cannot be reached from START")
