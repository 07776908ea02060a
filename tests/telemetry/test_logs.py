"""Log lines are JSON, one event a line, those of the standard library included."""

from __future__ import annotations

import json
import logging

import pytest
import structlog

from carpool.telemetry.logs import about, configure_logs
from schemas.record import Source


def test_each_event_is_one_json_line_with_service_level_and_time(
    capsys: pytest.CaptureFixture[str],
) -> None:
    handlers, level = logging.getLogger().handlers[:], logging.getLogger().level
    try:
        configure_logs(service="grouper", level="info")
        log = structlog.get_logger()
        log.debug("hidden")
        log.info("window closed", queries=3, topic="rag.queries.v1", offset=7)
        logging.getLogger("elsewhere").warning("an old hand")
        logging.getLogger("httpx2").info("HTTP Request: GET ...")
        try:
            raise ZeroDivisionError
        except ZeroDivisionError:
            log.exception("it broke", odd=object)
    finally:
        logging.getLogger().handlers[:] = handlers
        logging.getLogger().setLevel(level)
        structlog.contextvars.clear_contextvars()
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [line["event"] for line in lines] == ["window closed", "an old hand", "it broke"]
    assert {line["service"] for line in lines} == {"grouper"}
    assert [line["level"] for line in lines] == ["info", "warning", "error"]
    assert (lines[0]["queries"], lines[0]["offset"]) == (3, 7)
    assert "ZeroDivisionError" in lines[2]["exception"]
    assert all(line["timestamp"].endswith("Z") for line in lines)


def test_a_line_about_a_record_has_its_place_query_and_trace() -> None:
    source = Source(topic="rag.queries.v1", partition=3, offset=7)
    traced = (("traceparent", b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),)
    place = {"topic": "rag.queries.v1", "partition": 3, "offset": 7}
    assert about(source) == place
    assert about(source, traced, query_id="q") == place | {
        "query_id": "q",
        "trace_id": "0af7651916cd43dd8448eb211c80319c",
    }
