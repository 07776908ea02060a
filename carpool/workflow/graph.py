"""Workflows as graphs: `RAGraph` as in the paper's Listing 1, and the JSON form of a query. Pure.

HedraRAG 4.1: nodes generate or search, edges say what comes next. A graph is run as a program: it
yields the step of each node, and keeps the outputs by name. `input` and `query` are the question.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, Final, TypeAlias

import msgspec

from carpool.workflow.program import Program, Run, text_digest
from carpool.workflow.steps import AnswerStep, Found, Generate, Retrieve, WorkflowError
from schemas.workflow import STEPS_MAX, Condition, Graph, GraphEdge, GraphNode

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
Choice: TypeAlias = Callable[[Mapping[str, Any]], Node]
"""A condition in Python: it gets the outputs by name, and returns the next node."""
State: TypeAlias = dict[str, Any]
"""The outputs so far, by name: `str` for the question, `Said` and `Found` for those of nodes."""


class RAGraph:
    """A graph of generations and searches (HedraRAG 4.1, Listing 1).

    It keeps nodes and edges as the JSON form has them. The name of a node may be a number.
    """

    def __init__(self) -> None:
        self._nodes: dict[str, GraphNode] = {}
        self._edges: dict[str, list[GraphEdge] | Choice] = {}

    def add_generation(
        self,
        node: Node,
        *,
        prompt: str | None = None,
        template: str | None = None,
        output: str | None = None,
        max_tokens: int | None = None,
    ) -> None:
        """Adds a node that asks the model. `prompt`: text with outputs in braces, as `{docs}`.

        `template` instead: the name of a prompt template, which gets all texts by name, the
        question as `question`, and what was found last as `passages`.
        """
        self.add(
            GraphNode(
                id=str(node), prompt=prompt, template=template, output=output, max_tokens=max_tokens
            )
        )

    def add_retrieval(
        self, node: Node, *, query: str, output: str | None = None, topk: int | None = None
    ) -> None:
        """Adds a node that searches the output `query`. Its own output is `docs` by default."""
        self.add(GraphNode(id=str(node), query=query, output=output, top_k=topk))

    def add(self, node: GraphNode) -> None:
        """Adds a node. Raises `WorkflowError` that names it where it cannot be one."""
        if node.id in self._nodes or node.id in (START, END):
            raise WorkflowError(f"node {node.id!r}: another node, START or END has this name")
        if node.output in NO_OUTPUTS:
            raise WorkflowError(f"node {node.id!r}: an output cannot be named {node.output!r}")
        asks = (node.prompt is not None) + (node.template is not None)
        if node.query is not None and asks:
            raise WorkflowError(f"node {node.id!r} has a query and a prompt; make it two nodes")
        if node.query is None and asks != 1:
            raise WorkflowError(f"node {node.id!r} needs a prompt or a template, and not both")
        self._nodes[node.id] = node

    def add_edge(self, node: Node, to: Node | Choice, when: Condition | None = None) -> None:
        """Says what comes after a node: another one, or a function of the outputs by name.

        The function also finds `rounds`: how often this node has run. Of several edges of a node
        the first whose condition holds is taken.
        """
        source, known = str(node), self._edges.get(str(node))
        if callable(to) or callable(known):
            if known is not None:
                raise WorkflowError(f"node {source!r} has a function, and so no other edge")
            self._edges[source] = to  # type: ignore[assignment]
            return
        if when is not None:
            _check_condition(source, when)
        edge = GraphEdge(source=source, to=str(to), when=when)
        self._edges[source] = [*(known or ()), edge]

    def program(self, name: str, *, version: int = 1, steps_max: int = STEPS_MAX) -> Program:
        """Returns the graph as a program. Raises `WorkflowError` that names a node that is wrong.

        The digest is that of nodes, edges, and the names of functions: raise `version` with a
        change.
        """
        self._check()
        edges = {
            source: getattr(to, "__qualname__", "function") if callable(to) else to
            for source, to in self._edges.items()
        }
        return Program(
            name=name,
            version=version,
            function=self.run,
            digest=text_digest(_encoder.encode((list(self._nodes.values()), edges)).decode()),
            steps_max=steps_max,
            doc=f"a graph of {len(self._nodes)} nodes",
        )

    def run(self, question: str) -> Run:
        """Runs the graph. The answer is what the last generation wrote."""
        state: State = dict.fromkeys(QUESTION, question)
        visits = Counter[str]()
        said, passages = None, Found()
        at = self._after(START, state)
        while at != END:
            node = self._nodes[at]
            visits[at] += 1
            state["rounds"] = visits[at]
            if node.query is not None:
                text = _output(state, node.query, at)
                if isinstance(text, Found):
                    raise WorkflowError(f"node {at!r} searches passages; name a text as query")
                state[_name_of(node)] = passages = yield Retrieve(str(text), node.top_k)
            else:
                asks = AnswerStep if self._always_ends(at) else Generate
                step = asks(
                    node.template or "",
                    prompt=node.prompt,
                    max_tokens=node.max_tokens,
                    **_values(node, state, passages),
                )
                if isinstance(step, AnswerStep):
                    return step
                state[_name_of(node)] = said = yield step
                passages = step.passages or passages
            at = self._after(at, state)
        if said is None:
            raise WorkflowError("it came to END before a node wrote a text, so there is no answer")
        return AnswerStep(text=said, passages=passages)

    def _always_ends(self, node: str) -> bool:
        edges = self._edges[node]
        return not callable(edges) and edges[0].to == END and edges[0].when is None

    def _after(self, node: str, state: State) -> str:
        edges = self._edges[node]
        if callable(edges):
            to = str(edges(state))
            if to != END and to not in self._nodes:
                raise WorkflowError(f"node {node!r} leads to {to!r}, and there is no such node")
            return to
        for edge in edges:
            if edge.when is None or _holds(edge.when, state):
                return edge.to
        raise WorkflowError(f"node {node!r}: no condition of its edges holds; add one without")

    def _check(self) -> None:
        if START not in self._edges:
            raise WorkflowError("no edge begins at START")
        for source, edges in self._edges.items():
            if source != START and source not in self._nodes:
                raise WorkflowError(f"an edge begins at {source!r}, and there is no such node")
            for edge in () if callable(edges) else edges:
                if edge.to != END and edge.to not in self._nodes:
                    raise WorkflowError(
                        f"node {source!r} leads to {edge.to!r}, and there is no such node"
                    )
        outputs = {_name_of(node) for node in self._nodes.values()} | {*QUESTION}
        for at, node in self._nodes.items():
            if at not in self._edges:
                raise WorkflowError(f"node {at!r} has no edge; the last one leads to END")
            for name in _uses(node):
                if name not in outputs:
                    raise WorkflowError(
                        f"node {at!r} uses {{{name}}}, and no node has this output; there are: "
                        f"{', '.join(sorted(outputs))}"
                    )
        self._check_paths()

    def _check_paths(self) -> None:
        """Checks that END and all nodes can be reached, as far as functions do not hide it."""
        edges = {source: each for source, each in self._edges.items() if not callable(each)}
        if len(edges) < len(self._edges):
            return
        seen, open_nodes = set[str](), [str(START)]
        while open_nodes:
            at = open_nodes.pop()
            seen.add(at)
            open_nodes += [edge.to for edge in edges.get(at, ()) if edge.to not in seen]
        if END not in seen:
            raise WorkflowError("no path leads from START to END: the graph would not end")
        for node in self._nodes:
            if node not in seen:
                raise WorkflowError(f"node {node!r} cannot be reached from START")


def _name_of(node: GraphNode) -> str:
    """Returns the name of a node's output."""
    return node.output or ("docs" if node.query is not None else f"output_{node.id}")


def _uses(node: GraphNode) -> list[str]:
    """Returns the outputs that a node names."""
    return [node.query] if node.query is not None else PLACEHOLDER.findall(node.prompt or "")


def _values(node: GraphNode, state: State, passages: Found) -> dict[str, Any]:
    if node.prompt is None:
        texts = {name: value for name, value in state.items() if not isinstance(value, Found)}
        return {"question": state["input"], **texts, "passages": passages}
    return {name: _output(state, name, node.id) for name in dict.fromkeys(_uses(node))}


def _output(state: State, name: str, at: str) -> Any:
    if name not in state:
        raise WorkflowError(f"node {at!r} uses {{{name}}}, which no node has made yet")
    return state[name]


def program_of(graph: Graph) -> Program:
    """Returns the program of a graph in JSON. Raises `WorkflowError` that names a node."""
    ours = RAGraph()
    for node in graph.nodes:
        ours.add(node)
    for edge in graph.edges:
        ours.add_edge(edge.source, edge.to, edge.when)
    return ours.program(INLINE)


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


def _check_condition(source: str, when: Condition) -> None:
    """Raises `WorkflowError` where a condition is not complete."""
    if when.test == "rounds_at_most":
        if type(when.argument) is not int:
            raise WorkflowError(f"node {source!r}: rounds_at_most needs a number as argument")
        return
    if when.value is None:
        raise WorkflowError(f"node {source!r}: {when.test} needs the value that it tests")
    if when.test in ("equals", "contains") and when.argument is None:
        raise WorkflowError(f"node {source!r}: {when.test} needs an argument")
