"""Workflows in records: graphs of applications, results of finished steps; limits of workflows.

A graph with an unknown field is refused: without it, other steps would be run.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from schemas.hit import Hit
from schemas.record import ClusterId, Count, Identifier, Integer, Real, Record

GRAPH_BYTES_MAX = 16 * 1024
JOURNAL_BYTES_MAX = 256 * 1024
"""Most bytes of a step's record that are its journal; more ends the workflow."""
NODES_MAX = 16
ROUND_STEPS_MAX = 8
SEARCH_CHARS_MAX = 65_536
STEPS_MAX = 12
"""Most steps of a run, where its program does not say how many; see `workflow.steps_max`, too."""

Test = Literal["not_empty", "empty", "equals", "contains", "rounds_at_most"]


class Condition(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When an edge is taken: a test of the output `value`, or of how often the node has run.

    `argument`: the text that the output must equal or contain (case is ignored); or how often the
    node may have run.
    """

    test: Test
    value: Identifier | None = None
    argument: str | Integer | None = None


class GraphEdge(
    Record, frozen=True, kw_only=True, forbid_unknown_fields=True, rename={"source": "from"}
):
    """From a node to another. START and END are nodes, too. The first edge that fits is taken."""

    source: Identifier
    to: Identifier
    when: Condition | None = None


class GraphNode(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A step. A node with `query` searches that output; one with `prompt` or `template` generates.

    `prompt`: text with outputs in braces: `{input}` is the question, `{docs}` what the node with
    that output has found. `output`: the name of the result.
    """

    id: Identifier
    output: Identifier | None = None
    query: Identifier | None = None
    top_k: Annotated[int, msgspec.Meta(ge=1, le=100)] | None = None
    prompt: Annotated[str, msgspec.Meta(max_length=8_192)] | None = None
    template: Identifier | None = None
    max_tokens: Annotated[int, msgspec.Meta(ge=1, le=32_768)] | None = None


class Graph(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A workflow as a graph of at most 16 nodes (HedraRAG 4.1)."""

    nodes: Annotated[tuple[GraphNode, ...], msgspec.Meta(min_length=1, max_length=NODES_MAX)]
    edges: Annotated[tuple[GraphEdge, ...], msgspec.Meta(min_length=1, max_length=64)]


class InlineWorkflow(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A workflow that a query brings along."""

    graph: Graph


class StepResult(Record, frozen=True, kw_only=True):
    """The result of a finished step. `digest`: of the step itself.

    `text` was searched, or the model wrote it. `hits` were found; None: it is no search. The
    clusters `skipped` could not be read. `is_cut`: the text ended at its limit. `is_shared`: it was
    generated for an equal step of another workflow, so its tokens were not paid. `left_out` has the
    ids of passages that the program gave and its prompt does not show.
    """

    digest: str
    text: str
    hits: tuple[Hit, ...] | None = None
    skipped: tuple[ClusterId, ...] = ()
    is_cut: bool = False
    is_shared: bool = False
    left_out: tuple[str, ...] = ()
    took_ms: Real = 0.0
    input_tokens: Count = 0
    output_tokens: Count = 0
    cached_tokens: Count = 0
