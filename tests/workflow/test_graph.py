"""Graphs: the paper's two listings, the JSON form, and what is refused with the name of a node."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from carpool.workflow import END, START, Program, RAGraph, Retrieve
from carpool.workflow.graph import program_of
from carpool.workflow.resume import resume
from carpool.workflow.steps import WorkflowError
from schemas.workflow import Graph, StepResult
from tests.records import some_hits


def hyde_listing() -> Program:
    """HedraRAG, Listing 1, lines 3 to 10."""
    graph = RAGraph()
    graph.add_generation(0, prompt="Generate a hypothesis for {input}.", output="hypopara")
    graph.add_retrieval(1, topk=5, query="hypopara", output="docs")
    graph.add_generation(2, prompt="Answer {query} using {docs}.")
    graph.add_edge(START, 0)
    graph.add_edge(0, 1)
    graph.add_edge(1, 2)
    graph.add_edge(2, END)
    return graph.program("listing-hyde")


def multistep_listing() -> Program:
    """HedraRAG, Listing 1, lines 11 to 19."""
    graph = RAGraph()
    graph.add_generation(0, prompt="Decompose {input} into subquestions.", output="subquestion")
    graph.add_retrieval(1, topk=2, query="subquestion", output="docs")
    graph.add_generation(2, prompt="Answer {subquestion} using {docs}.")
    graph.add_edge(START, 0)
    graph.add_edge(0, 1)
    graph.add_edge(1, 2)
    graph.add_edge(2, lambda s: 1 if s.get("subquestion") and s["rounds"] < 2 else END)
    return graph.program("listing-multistep")


def run(program: Program, text: str = "t") -> tuple[list[str], Any]:
    """Runs a program; returns the kinds of its steps, and its answer."""
    kinds, rounds = [], list[tuple[StepResult, ...]]()
    while (asked := resume(program, "why?", rounds)).answer is None:
        (step,) = asked.steps
        is_search = isinstance(step, Retrieve)
        kinds.append("search" if is_search else "generate")
        hits = tuple(some_hits(2)) if is_search else None
        rounds.append((StepResult(digest=step.digest(), text=text, hits=hits),))
    return kinds, asked.answer


def test_the_listings_of_the_paper_run_as_they_are_printed() -> None:
    kinds, answer = run(hyde_listing())
    assert kinds == ["generate", "search"]
    assert answer.prompt == "Answer {query} using {docs}."
    assert answer.values["query"] == "why?"
    assert [hit.doc_id for hit in answer.passages] == [hit.doc_id for hit in some_hits(2)]
    kinds, answer = run(multistep_listing())
    assert kinds == ["generate", "search", "generate", "search", "generate"]
    assert answer.is_written and str(answer.values["text"]) == "t"
    assert len(answer.passages) == 2


def graph(*edges: dict[str, Any], **nodes: dict[str, Any]) -> Graph:
    body = {"nodes": [{"id": id, **node} for id, node in nodes.items()], "edges": list(edges)}
    return msgspec.json.decode(json.dumps(body), type=Graph)


def edge(source: str, to: str, **when: Any) -> dict[str, Any]:
    return {"from": source, "to": to, **({"when": when} if when else {})}


ASK = {"prompt": "Ask {input}.", "output": "part"}
FIND = {"query": "part", "top_k": 2}


@pytest.mark.parametrize(
    ("when", "text", "rounds"),
    [
        ({"test": "rounds_at_most", "argument": 3}, "x", 4),
        ({"test": "empty", "value": "part"}, "x", 1),
        ({"test": "equals", "value": "part", "argument": " NONE"}, "x", 1),
        ({"test": "contains", "value": "docs", "argument": "no such word"}, "x", 1),
    ],
)
def test_the_conditions_of_edges_in_json(when: dict[str, Any], text: str, rounds: int) -> None:
    found = graph(
        edge("START", "ask"), edge("ask", "find"), edge("find", "ask", **when), edge("find", "END"),
        ask=ASK, find=FIND,
    )  # fmt: skip
    kinds, _ = run(program_of(found), text)
    assert kinds == ["generate", "search"] * rounds


@pytest.mark.parametrize(
    ("when", "text"),
    [
        ({"test": "empty", "value": "not_written"}, "x"),
        ({"test": "equals", "value": "part", "argument": " NONE"}, "None "),
        ({"test": "contains", "value": "part", "argument": "no MORE"}, "there is no more"),
    ],
)
def test_a_condition_that_holds_ends_a_circle(when: dict[str, Any], text: str) -> None:
    found = graph(
        edge("START", "ask"), edge("ask", "find"), edge("find", "END", **when), edge("find", "ask"),
        ask=ASK, find=FIND,
    )  # fmt: skip
    assert run(program_of(found), text)[0] == ["generate", "search"]


def test_an_edge_that_tests_for_a_text_is_taken_until_the_limit_of_steps_ends_it() -> None:
    circle = edge("find", "ask", test="not_empty", value="part")
    found = graph(
        edge("START", "ask"), edge("ask", "find"), circle, edge("find", "END"), ask=ASK, find=FIND
    )
    with pytest.raises(WorkflowError, match="step 13: it asks for more than 12 steps") as error:
        run(program_of(found))
    assert error.value.kind == "workflow_limit"


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ((edge("START", "ask"), edge("ask", "ask")), "no path leads from START to END"),
        ((edge("START", "ask"), edge("ask", "gone")), "node 'ask' leads to 'gone'"),
        ((edge("START", "ask"),), "node 'ask' has no edge"),
        ((edge("ask", "END"),), "no edge begins at START"),
        (
            (edge("START", "ask"), edge("ask", "END"), edge("find", "END")),
            "an edge begins at 'find'",
        ),
        (
            (edge("START", "ask"), edge("ask", "END", test="equals", value="part")),
            "node 'ask': equals needs an argument",
        ),
        (
            (edge("START", "ask"), edge("ask", "END", test="rounds_at_most")),
            "node 'ask': rounds_at_most needs a number",
        ),
    ],
)
def test_a_graph_that_cannot_run_is_refused_with_the_name_of_the_node(
    bad: tuple[dict[str, Any], ...], said: str
) -> None:
    with pytest.raises(WorkflowError, match=said):
        program_of(graph(*bad, ask=ASK))


@pytest.mark.parametrize(
    ("node", "said"),
    [
        ({"prompt": "Use {nothing}."}, "node 'ask' uses {nothing}, and no node has this output"),
        ({"prompt": "x", "query": "part"}, "node 'ask' has a query and a prompt"),
        ({}, "node 'ask' needs a prompt or a template"),
    ],
)
def test_a_node_that_cannot_run_is_refused(node: dict[str, Any], said: str) -> None:
    with pytest.raises(WorkflowError) as error:
        program_of(graph(edge("START", "ask"), edge("ask", "END"), ask=node))
    assert said in str(error.value)


def test_a_template_gets_the_texts_by_name_and_what_was_found_last_as_passages() -> None:
    again = edge("first", "second", test="rounds_at_most", argument=1)
    found = graph(
        edge("START", "first"), again, edge("second", "first"), edge("first", "say"),
        edge("say", "END"),
        first={"query": "input", "output": "one"}, second={"query": "input", "output": "two"},
        say={"template": "cited"},
    )  # fmt: skip
    program, rounds = program_of(found), list[tuple[StepResult, ...]]()
    for count in (1, 2, 3):
        (step,) = resume(program, "why?", rounds).steps
        rounds.append((StepResult(digest=step.digest(), text="", hits=tuple(some_hits(count))),))
    answer = resume(program, "why?", rounds).answer
    assert answer is not None and answer.values["question"] == "why?"
    assert len(answer.passages) == 3
    assert not {"one", "two"} & answer.values.keys()


@pytest.mark.parametrize("name", ["seed", "prompt", "self", "input", "rounds"])
def test_an_output_cannot_take_the_name_of_something_else(name: str) -> None:
    with pytest.raises(WorkflowError, match=f"node 'ask': an output cannot be named '{name}'"):
        program_of(graph(edge("START", "ask"), edge("ask", "END"), ask={**ASK, "output": name}))


def test_a_graph_that_searches_passages_or_ends_without_a_text_says_so() -> None:
    found = graph(
        edge("START", "a"), edge("a", "b"), edge("b", "END"),
        a={"query": "input"}, b={"query": "docs"},
    )  # fmt: skip
    with pytest.raises(WorkflowError, match="node 'b' searches passages; name a text"):
        run(program_of(found))
    only = graph(edge("START", "a"), edge("a", "END"), a={"query": "input"})
    with pytest.raises(WorkflowError, match="it came to END before a node wrote a text"):
        run(program_of(only))
