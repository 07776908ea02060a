"""Answers as people see them, metrics as they are read, and where `carpool up` puts things."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import msgspec
import pytest
from rich.console import Console, RenderableType

from carpool.errors import ConfigError
from carpool.vllm import (
    VllmSettings,
    check_vllm,
    is_cpu_build,
    kv_events_in,
    model_name,
    vllm_command,
    vllm_environment,
)
from cli.answers import answer_text, has_evidence, stages_of, text_after, timing_table
from cli.demo import summary
from cli.http import missing_of, parse_metrics
from cli.stack import choose_port
from schemas.answer import Answer, Citation, InventedCitation, Quote, Retrieved, unanswered


def cited(*doc_ids: str, given: tuple[str, ...] = ("a", "b"), **more: float) -> Answer:
    return Answer(
        query_id="q",
        status="ok",
        is_final=True,
        replayed=False,
        attempts=1,
        answer=" In 1889 [1]. ",
        citations=tuple(
            Citation(n=n, doc_id=doc_id, title=doc_id.upper())
            for n, doc_id in enumerate(doc_ids, start=1)
        ),
        retrieved=tuple(Retrieved(id=doc_id, score=0.5) for doc_id in given),
        timings_ms=more,
    )


def shown(what: RenderableType) -> str:
    console = Console(width=100, color_system=None)
    with console.capture() as capture:
        console.print(what)
    return capture.get()


def test_the_demo_counts_answers_with_passages_whether_or_not_the_model_cites_one() -> None:
    late = unanswered(
        query_id="q", status="expired", stage="searcher", error_type="expired", message="too late"
    )
    assert has_evidence(cited()) and not has_evidence(cited(given=())) and not has_evidence(late)
    quoted = msgspec.structs.replace(
        cited(), status="partial", quotes=(Quote(n=1, doc_id="a", start=0, end=2, text="It"),)
    )
    assert summary([cited("a"), quoted, late], 4) == (
        "2 of 4 answered from passages (1 cut short): 1 with a quote, 1 with a citation by the "
        "model."
    )


@pytest.mark.parametrize(
    ("pieces", "after"),
    [
        ("", "It was built in 1889 in Paris."),
        ("It was built", " in 1889 in Paris."),
        (" It was built in 1889 in Paris.\n", ""),
        (
            "It was built in 1889 in Paris. It was built in",
            "\n(the text repeats itself; the answer ends with “… built in 1889 in Paris.”)",
        ),
        ("It was", " built in 1889 in Paris."),
        ("It is", "\nIt was built in 1889 in Paris."),
    ],
)
def test_after_its_pieces_only_what_they_lack_of_an_answer_is_shown(
    pieces: str, after: str
) -> None:
    answer = msgspec.structs.replace(cited("a"), answer=" It was built in 1889 in Paris. ")
    assert text_after(pieces, answer).plain == after


def test_an_invented_citation_is_shown_as_such() -> None:
    invented = msgspec.structs.replace(cited("a"), invented_citations=(InventedCitation(n=7),))
    assert "  [1] A  (a)\n  [7] invented: the prompt has no such passage" in shown(
        answer_text(invented)
    )


def test_an_answer_without_citations_shows_what_the_model_was_given() -> None:
    assert "no citation; the model was given: a, b" in shown(answer_text(cited()))


def test_a_quote_is_shown_beside_the_answer_and_a_url_with_its_citation() -> None:
    quote = Quote(n=1, doc_id="a", start=0, end=9, text="It is so.", title="A")
    answer = msgspec.structs.replace(
        cited("a"),
        quotes=(quote,),
        citations=(Citation(n=1, doc_id="a", title="A", url="https://a.example"),),
    )
    assert shown(answer_text(answer)) == (
        "In 1889 [1].\n  quote “It is so.”  (A)\n  [1] A  (https://a.example)\n"
    )
    extractive = msgspec.structs.replace(answer, answer="It is so.")
    assert "quote" not in shown(answer_text(extractive))


def test_stages_stand_in_the_order_in_which_they_happen() -> None:
    answers = [cited(total=9, search=3, kafka_wait=1), cited(total=9, brand_new=2, decode=4)]
    assert stages_of(answers) == ("kafka_wait", "search", "decode", "brand_new", "total")
    assert "1,234.5" in shown(timing_table([cited(total=1234.5)]))


def test_metrics_are_read_with_their_labels() -> None:
    text = '# HELP x y\ncarpool_a_total{status="ok",x="a\\"b"} 3.0\ncarpool_b 1e3\n\nnot a sample\n'
    assert parse_metrics(text) == {
        ("carpool_a_total", (("status", "ok"), ("x", 'a\\"b'))): 3.0,
        ("carpool_b", ()): 1000.0,
    }


def test_what_is_missing_is_read_from_any_page() -> None:
    assert missing_of(b'{"ready":false,"missing":["index","model"]}') == ["index", "model"]
    assert missing_of(b"<html>") == ["not ready"]
    assert missing_of(b"[]") == ["not ready"]


def test_a_default_port_that_is_taken_gives_way_and_a_chosen_one_is_an_error() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert choose_port(port, port, "the broker") not in (port, 0)
        with pytest.raises(ConfigError, match=f"port {port} for the broker is taken"):
            choose_port(port, 9092, "the broker")
    assert choose_port(port, 9092, "the broker") == port
    assert choose_port(0, 9092, "the broker") > 0


def test_vllm_is_started_on_loopback_with_what_the_settings_say() -> None:
    settings = VllmSettings(model_dir="models/tiny", sequences_max=7, extra_args=("--seed", "1"))
    command = " ".join(vllm_command(settings, 8123))
    assert "--host 127.0.0.1 --port 8123" in command
    assert "--model models/tiny --served-model-name tiny" in command
    assert "--max-num-seqs 7" in command
    assert command.endswith("--seed 1")
    assert "--kv-events-config" not in command
    told = {"VLLM_CPU_OMP_THREADS_BIND": "2-3", "CARPOOL_LLM_API_KEY": "secret"}
    environ = vllm_environment(told)
    assert environ["HF_HUB_OFFLINE"] == "1"
    assert "CARPOOL_LLM_API_KEY" not in environ
    assert environ["VLLM_CPU_OMP_THREADS_BIND"] == "2-3"
    assert (vllm_environment({}).get("VLLM_CPU_KVCACHE_SPACE") == "1") == is_cpu_build()


def test_vllm_publishes_its_kv_events_where_only_this_user_reads_them(tmp_path: Path) -> None:
    endpoint = kv_events_in(tmp_path / "r")
    assert endpoint == f"ipc://{tmp_path}/r/kv-events"
    command = vllm_command(VllmSettings(), 8123, kv_events=endpoint)
    config = json.loads(command[command.index("--kv-events-config") + 1])
    assert config["enable_kv_cache_events"] is True
    assert (config["endpoint"], config["replay_endpoint"]) == (endpoint, f"{endpoint}.replay")
    assert kv_events_in(tmp_path / ("x" * 107)) is None, "no socket has so long a path"


def test_a_folder_without_a_model_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--llm"):
        check_vllm(VllmSettings(model_dir=str(tmp_path)))
    assert model_name(VllmSettings(model_dir=f"{tmp_path}/x/")) == "x"
