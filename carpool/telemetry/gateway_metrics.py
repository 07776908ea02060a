"""The metrics of the gateway."""

from __future__ import annotations

from carpool.telemetry.metric_group import MetricGroup, counter, gauge, seconds


class GatewayMetrics(MetricGroup):
    """Requests of HTTP, and the questions behind them."""

    requests = counter(
        "gateway_requests_total",
        "Requests by status of HTTP. Many of 401 or 429: somebody tries keys, or has too low a "
        "limit.",
        "status",
    )
    request_seconds = seconds(
        "gateway_request_seconds", "Time of a request until its last byte, streams too."
    )
    questions = gauge(
        "gateway_questions", "Questions that wait for an answer, also those whose client is gone."
    )
    taken_over = counter(
        "gateway_questions_taken_over_total",
        "Questions that an equal request took over, because the first client was gone: not paid "
        "twice.",
    )
    failed_streams = counter(
        "gateway_failed_streams_total",
        "Streams that ended without a whole answer: the question failed, or the model began again.",
    )
