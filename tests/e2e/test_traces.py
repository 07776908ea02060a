"""One query through all topics and services is one trace at the collector."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes, messaging_attributes
from opentelemetry.semconv.attributes import server_attributes

from bench.core.stack import Stack
from carpool.loop.tracing.setup import SEMANTIC_CONVENTIONS
from carpool.testing.llm_server import LlmServer
from schemas.topics import ANSWERS, GROUPS, QUERIES, RETRIEVALS
from tests.e2e.support import Publisher, at_least, quick_settings, read_all, read_to_end
from tests.loop.collector import Collector, Seen

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
ASKED = f"00-{TRACE_ID}-b7ad6b7169203331-01"
HOPS = (
    ("carpool-grouper", f"process {QUERIES.name}", f"send {GROUPS.name}"),
    ("carpool-searcher", f"process {GROUPS.name}", f"send {RETRIEVALS.name}"),
    ("carpool-generator", f"process {RETRIEVALS.name}", f"send {ANSWERS.name}"),
)
PLAIN_COUNT = 5
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


def test_a_query_is_one_trace_through_all_topics(
    fresh_broker: str, small_index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with LlmServer() as llm, Collector() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        settings = quick_settings() | {"CARPOOL_LLM_MODEL": llm.model}
        with Stack(
            bootstrap=fresh_broker,
            index_dir=small_index,
            work_dir=tmp_path,
            settings=settings,
            llm_url=llm.url,
        ) as stack:
            for service in stack.processes.values():
                service.wait_ready()
            publisher = Publisher(fresh_broker)
            asked = json.dumps(
                {"query_id": "traced", "text": "what of the river and the comet?"}
            ).encode()
            headers = (("traceparent", ASKED.encode()), ("tracestate", b"vendor=1"))
            publisher.queue(QUERIES.name, asked, key="traced", headers=headers)
            for number in range(PLAIN_COUNT):
                text = json.dumps(
                    {"query_id": f"plain-{number}", "text": "what of the glacier?"}
                ).encode()
                publisher.queue(QUERIES.name, text, key=f"plain-{number}")
            publisher.flush()
            answers = read_all(fresh_broker, ANSWERS.name, until=at_least(PLAIN_COUNT + 1))
            commits = {f"commit {topic.name}" for topic in (QUERIES, RETRIEVALS)}
            ended = commits | {f"send {ANSWERS.name}", "plan window", "process group"}
            # Each service exports on its own, a little later than it answers.
            spans = collector.wait_for(
                lambda spans: (
                    ended <= {span.name for span in spans}
                    and all(
                        sum(span.name == name for span in spans) == PLAIN_COUNT + 1
                        for _, name, _ in HOPS
                    )
                ),
            )
            retrievals = read_to_end(fresh_broker, RETRIEVALS.name)
            groups = read_to_end(fresh_broker, GROUPS.name)
    traced = next(found for found in answers if found.body["query_id"] == "traced")
    # One trace, each service's span under the one that sent it its record.
    above = "b7ad6b7169203331"
    for service, process_name, send_name in HOPS:
        process = one(spans, process_name)
        assert process.service == service
        if (
            service == "carpool-searcher"
        ):  # the group carries many queries: each names the grouper's span of it
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
    # Windows and groups are traces of their own, linked to the queries' spans.
    grouped, searched = one(spans, HOPS[0][1]), one(spans, HOPS[1][1])
    window = next(
        s for s in spans if s.name == "plan window" and (TRACE_ID, grouped.span_id) in s.links
    )
    assert window.attributes["carpool.window.queries"] == len(window.links)
    group = next(
        s for s in spans if s.name == "process group" and (TRACE_ID, searched.span_id) in s.links
    )
    sent = next(s for s in spans if s.span_id == group.parent_id)
    assert sent.name == f"send {GROUPS.name}"
    assert (TRACE_ID, grouped.span_id) in sent.links or sent.parent_id == grouped.span_id
    for kind in ("poll", "commit"):
        assert any(
            (TRACE_ID, grouped.span_id) in s.links
            for s in spans
            if s.name == f"{kind} {QUERIES.name}"
        )
    # Queries that came without a trace have one each, the same at every stage.
    for number in range(PLAIN_COUNT):
        own = {
            span.trace_id
            for span in spans
            if span.attributes.get("carpool.query.id") == f"plain-{number}"
            and span.name.startswith("process rag.")
        }
        assert len(own) == 1
        assert own != {TRACE_ID}
    assert {found.text("traceparent").split("-")[1] for found in retrievals} == {
        found.text("traceparent").split("-")[1] for found in answers
    }
    assert all(found.text("traceparent") for found in groups)
    # Names are those of the conventions that the spans claim to follow.
    standard = {
        name for span in spans for name in span.attributes if not name.startswith("carpool.")
    }
    assert standard <= CONVENTIONS
    assert {span.schema_url for span in spans} == {SEMANTIC_CONVENTIONS}
