"""Graphs: listings of the paper and the guide, the JSON form, and what is refused by node."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from carpool.testing.run_program import run
from carpool.workflow import Answer, Found, Generate, Program, Retrieve, WorkflowError
from carpool.workflow.graph import program_of
from schemas.codec import decode_query
from schemas.workflow import Graph, InlineWorkflow
from tests.deploy.doc_blocks import ROOT, blocks_of
from tests.records import a_source, some_hits
from tests.workflow import listings


def ran(program: Program, text: str = "t") -> tuple[str, Answer]:
    """Runs a program; returns its searches and generations, as "sg", and its answer."""

    def result(step: Retrieve | Generate) -> Found | str:
        return Found(some_hits(2)) if isinstance(step, Retrieve) else text

    steps, answer = run(program, result, question="why?")
    return "".join("s" if isinstance(step, Retrieve) else "g" for step in steps), answer


def test_the_first_listing_of_the_paper_runs_as_it_is_printed() -> None:
    steps, answer = ran(listings.hyde)
    assert (steps, answer.prompt) == ("gs", "Answer {query} using {docs}.")
    assert (answer.values["query"], answer.passages) == ("why?", Found(some_hits(2)))


def test_the_second_listing_as_it_is_printed_ends_at_the_limit_of_steps() -> None:
    searched = list[str]()

    def result(step: Retrieve | Generate) -> list[str] | str:
        if isinstance(step, Generate):
            return f"text {len(searched)}"
        searched.append(step.text)
        return ["A passage."]

    with pytest.raises(WorkflowError, match="step 13: it asks for more than 12 steps") as error:
        run(listings.multistep, result)
    assert error.value.kind == "workflow_limit"
    assert set(searched) == {"text 0"}, "no node takes the sub-question away"


def test_the_graphs_of_the_guide_run_as_they_are_printed() -> None:
    blocks = blocks_of(ROOT / "docs" / "guides" / "workflows.md")
    (printed,) = (block.text for block in blocks if block.info == "json" and "nodes" in block.text)
    query = decode_query(printed.encode(), {}, a_source())
    assert isinstance(query.workflow, InlineWorkflow)
    results = ["Pisa's.", ["One."], "No.", "Eiffel's.", ["Two."], "Yes."]
    steps, answer = run(program_of(query.workflow.graph), results, question=query.text or "")
    searched = [step.text for step in steps if isinstance(step, Retrieve)]
    assert (searched, [hit.text for hit in answer.passages]) == (["Pisa's.", "Eiffel's."], ["Two."])
    (printed,) = (block.text for block in blocks if "RAGraph()" in block.text)
    names: dict[str, Program] = {}
    exec(printed, names)
    steps, answer = run(names["guess_first"], ["Pisa's.", ["One."]])
    assert steps[1] == Retrieve("Pisa's.", top_k=3)
    assert [hit.text for hit in answer.passages] == ["One."]


def graph(*edges: dict[str, Any], **nodes: dict[str, Any]) -> Program:
    body = {"nodes": [{"id": id, **node} for id, node in nodes.items()], "edges": list(edges)}
    return program_of(msgspec.json.decode(json.dumps(body), type=Graph))


def edge(source: str, to: str, **when: Any) -> dict[str, Any]:
    return {"from": source, "to": to, **({"when": when} if when else {})}


ASK = {"prompt": "Ask {input}.", "output": "part"}
FIND = {"query": "part", "top_k": 2}


@pytest.mark.parametrize(
    ("when", "text", "is_ended"),
    [
        ({"test": "empty", "value": "not_written"}, "x", True),
        ({"test": "empty", "value": "part"}, "x", False),
        ({"test": "not_empty", "value": "part"}, "x", True),
        ({"test": "not_empty", "value": "not_written"}, "x", False),
        ({"test": "equals", "value": "part", "argument": " NONE"}, "None ", True),
        ({"test": "equals", "value": "part", "argument": " NONE"}, "x", False),
        ({"test": "contains", "value": "part", "argument": "no MORE"}, "there is no more", True),
        ({"test": "contains", "value": "docs", "argument": "no such word"}, "x", False),
        ({"test": "rounds_at_most", "argument": 1}, "x", True),
    ],
)
def test_an_edge_is_taken_where_its_condition_holds(
    when: dict[str, Any], text: str, is_ended: bool
) -> None:
    program = graph(
        edge("START", "ask"), edge("ask", "find"), edge("find", "END", **when), edge("find", "ask"),
        ask=ASK, find=FIND,
    )  # fmt: skip
    if is_ended:
        assert ran(program, text)[0] == "gs"
    else:
        with pytest.raises(WorkflowError, match="step 13: it asks for more than 12 steps") as error:
            ran(program, text)
        assert error.value.kind == "workflow_limit"


def test_a_circle_ends_after_its_rounds() -> None:
    again = edge("find", "ask", test="rounds_at_most", argument=3)
    edges = edge("START", "ask"), edge("ask", "find"), again, edge("find", "END")
    assert ran(graph(*edges, ask=ASK, find=FIND))[0] == "gs" * 4


BEGIN, END = edge("START", "ask"), edge("ask", "END")


@pytest.mark.parametrize(
    ("edges", "ask", "said"),
    [
        ((BEGIN, edge("ask", "ask")), ASK, "no path leads from START to END"),
        ((BEGIN, edge("ask", "gone")), ASK, "node 'ask' leads to 'gone'"),
        ((BEGIN,), ASK, "node 'ask' has no edge"),
        ((END,), ASK, "no edge begins at START"),
        ((BEGIN, END, edge("find", "END")), ASK, "an edge begins at 'find'"),
        (
            (BEGIN, edge("ask", "END", test="equals", value="part")),
            ASK,
            "node 'ask': equals needs an argument",
        ),
        (
            (BEGIN, edge("ask", "END", test="rounds_at_most")),
            ASK,
            "node 'ask': rounds_at_most needs a number",
        ),
        ((BEGIN, END), {"prompt": "{gone}"}, "'ask' uses {gone}, and no node has this output"),
        ((BEGIN, END), {"prompt": "x", "query": "part"}, "node 'ask' has a query and a prompt"),
        ((BEGIN, END), {}, "node 'ask' needs a prompt or a template"),
        *(
            ((BEGIN, END), ASK | {"output": name}, f"an output cannot be named '{name}'")
            for name in ("seed", "prompt", "self", "input", "rounds")
        ),
        ((BEGIN, END), {"query": "input"}, "it came to END before a node wrote a text"),
        (
            (BEGIN, edge("ask", "ask", test="rounds_at_most", argument=1), END),
            {"query": "docs"},
            "node 'ask' uses {docs}, which no node has made yet",
        ),
    ],
)
def test_a_graph_that_cannot_run_is_refused_with_the_name_of_the_node(
    edges: tuple[dict[str, Any], ...], ask: dict[str, Any], said: str
) -> None:
    with pytest.raises(WorkflowError) as error:
        ran(graph(*edges, ask=ask))
    assert said in str(error.value)


def test_passages_cannot_be_searched() -> None:
    edges = edge("START", "ask"), edge("ask", "find"), edge("find", "END")
    with pytest.raises(WorkflowError, match="node 'find' searches passages; name a text"):
        ran(graph(*edges, ask={"query": "input"}, find={"query": "docs"}))


def test_a_template_gets_the_texts_by_name_and_what_was_found_last_as_passages() -> None:
    again = edge("first", "second", test="rounds_at_most", argument=1)
    program = graph(
        edge("START", "first"), again, edge("second", "first"), edge("first", "say"),
        edge("say", "END"),
        first={"query": "input", "output": "one"}, second={"query": "input", "output": "two"},
        say={"template": "cited"},
    )  # fmt: skip
    found = [Found(some_hits(count)) for count in (1, 2, 3)]
    answer = run(program, found, question="why?").answer
    assert (answer.values["question"], answer.passages) == ("why?", found[-1])
    assert not {"one", "two"} & answer.values.keys()
