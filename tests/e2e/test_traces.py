"""One query through all topics and services is one trace at the collector."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes, messaging_attributes
from opentelemetry.semconv.attributes import server_attributes

from carpool.testing.llm_server import LlmServer
from carpool.tracing.setup import SEMANTIC_CONVENTIONS
from schemas.record import Headers
from schemas.topics import ANSWERS, GROUPS, QUERIES, RETRIEVALS
from tests.e2e.support import Publisher, at_least, read_all, services
from tests.loop.collector import Collector, Seen

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
ASKED = f"00-{TRACE_ID}-b7ad6b7169203331-01"
HOPS = (
    ("carpool-grouper", f"process {QUERIES.name}", f"send {GROUPS.name}"),
    ("carpool-searcher", f"process {GROUPS.name}", f"send {RETRIEVALS.name}"),
    ("carpool-generator", f"process {RETRIEVALS.name}", f"send {ANSWERS.name}"),
)
CONVENTIONS = {
    value
    for module in (gen_ai_attributes, messaging_attributes, server_attributes)
    for name, value in vars(module).items()
    if name.isupper() and isinstance(value, str)
}


def one(spans: list[Seen], name: str, trace_id: str = TRACE_ID) -> Seen:
    found = [span for span in spans if (span.name, span.trace_id) == (name, trace_id)]
    assert len(found) == 1, (name, [(span.name, span.trace_id) for span in spans])
    return found[0]


@pytest.mark.slow
def test_a_query_is_one_trace_through_all_topics(
    bootstrap: str, small_index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with LlmServer() as llm, Collector() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        with services(bootstrap, small_index, tmp_path, llm):
            publisher = Publisher(bootstrap)
            headers: Headers = (("traceparent", ASKED.encode()), ("tracestate", b"vendor=1"))
            for query_id, its_headers in (("traced", headers), ("plain", ())):
                body = {"query_id": query_id, "text": "what of the river and the comet?"}
                publisher.queue(
                    QUERIES.name, json.dumps(body).encode(), key=query_id, headers=its_headers
                )
            publisher.flush()
            answers = read_all(bootstrap, ANSWERS.name, until=at_least(2))
            # Each service exports on its own, a little later than it answers.
            spans = collector.wait_for(
                lambda spans: (
                    all(sum(span.name == name for span in spans) == 2 for _, name, _ in HOPS)
                    and f"send {ANSWERS.name}" in {span.name for span in spans}
                )
            )
    traced = next(found for found in answers if found.body["query_id"] == "traced")
    # One trace, each service's span under the one that sent it its record.
    above = "b7ad6b7169203331"
    for service, process_name, send_name in HOPS:
        process = one(spans, process_name)
        assert process.service == service
        if service == "carpool-searcher":  # a group names the grouper's span of each query
            above = one(spans, HOPS[0][1]).span_id
        assert process.parent_id == above
        assert process.attributes["carpool.query.id"] == "traced"
        sends = [
            span for span in spans if span.name == send_name and span.parent_id == process.span_id
        ]
        above = sends[0].span_id if sends else ""
    assert traced.text("traceparent") == f"00-{TRACE_ID}-{one(spans, HOPS[2][2]).span_id}-01"
    assert traced.text("tracestate") == "vendor=1"
    # What was done for it, under the span of where.
    chat = next(
        span for span in spans if span.name.startswith("chat ") and span.trace_id == TRACE_ID
    )
    assert chat.parent_id == one(spans, HOPS[2][1]).span_id
    assert chat.attributes["gen_ai.usage.output_tokens"] > 0
    search = next(
        span for span in spans if span.name.startswith("retrieval ") and span.trace_id == TRACE_ID
    )
    assert search.parent_id == one(spans, HOPS[1][1]).span_id
    # A query that came without a trace has one, the same at every stage.
    own = {
        span.trace_id
        for span in spans
        if span.attributes.get("carpool.query.id") == "plain" and span.name.startswith("process ")
    }
    assert len(own) == 1
    assert own != {TRACE_ID}
    # Names are those of the conventions that the spans claim to follow.
    standard = {
        name for span in spans for name in span.attributes if not name.startswith("carpool.")
    }
    assert standard <= CONVENTIONS
    assert {span.schema_url for span in spans} == {SEMANTIC_CONVENTIONS}
