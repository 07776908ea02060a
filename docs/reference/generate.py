"""Writes the pages of `docs/reference/` from the code: `python docs/reference/generate.py`."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import typer
from prometheus_client import CollectorRegistry

from carpool.kafka.acls import ROLES, acls_of
from carpool.kafka.settings import KafkaSettings
from carpool.settings import describe, section_kinds
from carpool.telemetry.metrics import Metrics
from cli.exit_codes import EXIT_CODES
from cli.settings import CarpoolSettings
from schemas.headers import HEADERS
from schemas.topics import FOR_EVER, TOPICS, UNTIL_PROCESSED, Topic

FOLDER = Path(__file__).parent
WIDTH = 100
NOTE = "<!-- Written by `make docs` from the code. Edit the code, not this page. -->"
HOUR_MS = 3_600_000


def pages() -> dict[str, str]:
    """Returns the text of each generated page by its file name."""
    return {
        "settings.md": settings_page(),
        "metrics.md": metrics_page(),
        "headers.md": headers_page(),
        "topics.md": topics_page(),
        "acls.md": acls_page(),
        "exit-codes.md": exit_codes_page(),
        "cli.md": cli_page(),
    }


def page(title: str, about: str, lines: list[str]) -> str:
    """Returns a page: title, note, an introduction that is wrapped, and `lines` as they are."""
    intro = [line for part in about.split("\n") for line in (textwrap.wrap(part, WIDTH) or [""])]
    return "\n".join([f"# {title}", "", NOTE, "", *intro, "", *lines]).rstrip() + "\n"


def item(text: str) -> list[str]:
    """Returns a list item, wrapped."""
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent="- ",
        subsequent_indent="  ",
        break_on_hyphens=False,
        break_long_words=False,
    )


def shown(value: Any) -> str:
    """Returns a default value as a settings file writes it."""
    return json.dumps(msgspec.to_builtins(value), ensure_ascii=False)


def settings_page() -> str:
    """Returns every setting by section."""
    lines: list[str] = []
    for section, kind in section_kinds(CarpoolSettings).items():
        lines += [f"## {section}", ""]
        for doc in describe(section, kind):
            choices = f", one of {', '.join(f'`{each}`' for each in doc.choices)}"
            default = "no default, a secret" if doc.is_secret else f"default `{shown(doc.default)}`"
            lines += [f"### {section}.{doc.name}", ""]
            lines += textwrap.wrap(doc.description, WIDTH, break_on_hyphens=False)
            lines += ["", f"`{doc.environment}`, {default}{choices if doc.choices else ''}", ""]
    return page(
        "Settings",
        "Each setting: what it bounds, its environment variable, its default. A TOML file "
        "(`--config FILE`), the environment and flags (`--set section.name=value`) set them; the "
        "last one wins. Secrets are read from the environment only. `carpool config` prints the "
        "values in force and where each value came from.",
        lines,
    )


def metrics_page() -> str:
    """Returns every metric that a service exports, in the order of the one list."""
    registry = CollectorRegistry()
    Metrics(registry)
    labels = {
        family.name: getattr(collector, "_labelnames", ())
        for collector in list(getattr(registry, "_collector_to_names", {}))
        for family in collector.describe()
    }
    lines: list[str] = []
    for family in registry.collect():
        name = f"{family.name}_total" if family.type == "counter" else family.name
        of = f", labels {', '.join(f'`{each}`' for each in labels[family.name])}"
        lines += item(
            f"`{name}` ({family.type}{of if labels[family.name] else ''}): {family.documentation}"
        )
    return page(
        "Metrics",
        "What `/metrics` of every service exports, in the Prometheus format. A histogram has the "
        "suffixes `_bucket`, `_sum` and `_count`. Times are seconds, sizes are bytes.",
        lines,
    )


def headers_page() -> str:
    """Returns every record header."""
    lines: list[str] = []
    for each in HEADERS:
        lines += item(f"`{each.name}` (written by: {each.writer}): {each.meaning}")
    return page(
        "Record headers",
        "Carpool writes CloudEvents 1.0 in binary mode: attributes are headers that begin with "
        "`ce_`, the value is the JSON record. An application may leave out every header.",
        lines,
    )


def topics_page() -> str:
    """Returns every topic with its contract."""
    lines: list[str] = []
    for topic in TOPICS:
        schema = FOLDER.parents[1] / "schemas" / "json" / f"{topic.name}.schema.json"
        same = topic.name.replace(".batch.", ".")
        link = (
            f" [JSON Schema](../../schemas/json/{same}.schema.json)."
            if schema.exists() or (schema.parent / f"{same}.schema.json").exists()
            else ""
        )
        lines += item(f"`{topic.name}`: {topic.purpose}. {facts(topic)}.{link}")
    return page(
        "Topics",
        "`carpool topics create` makes the topics that are missing; `carpool topics check` "
        "compares those that exist with this list. A key is the `query_id` (of a batch "
        'the `batch_id`, of a document `["owner","id"]` or its id) as UTF-8; partitions are chosen '
        "by Java's default partitioner (murmur2). "
        "The number of partitions is `kafka.partitions`; topics by lane have `kafka.lanes`. At the "
        "brokers, each name begins with `kafka.prefix`, where there is one.",
        lines,
    )


def facts(topic: Topic) -> str:
    """Returns how a topic is partitioned, how long it keeps records, and its largest record."""
    by = {
        "query_id": "Partitioned by `query_id`",
        "lane": "Partitioned by lane",
        "source": "Partitioned by the partition of the source",
        "document": "Partitioned by the key, the document",
        "none": "One partition",
    }
    if topic.retention_ms == FOR_EVER:
        kept = "for ever"
    elif topic.retention_ms == UNTIL_PROCESSED:
        kept = "until processed, and the last 10,000 records"
    else:
        kept = f"for {topic.retention_ms // HOUR_MS} h"
    lag_ms = topic.compaction_lag_ms
    compact = "" if lag_ms is None else f", after {lag_ms // HOUR_MS} h only the newest of each key"
    effort = "; best effort" if topic.best_effort else ""
    return (
        f"{by[topic.partition_by]}; kept {kept}{compact}; records of at most "
        f"{topic.max_message_bytes:,} bytes with headers{effort}"
    )


def acls_page() -> str:
    """Returns the rights at the brokers of each role."""
    lines: list[str] = []
    for role, what in ROLES.items():
        rights: dict[tuple[str, str], list[str]] = {}
        for acl in acls_of(role, KafkaSettings()):
            star = "*" if acl.pattern == "PREFIXED" else ""
            operation = acl.operation.title().replace("_", "")
            kind = acl.resource.lower().replace("_", " ")
            rights.setdefault((kind, f"{acl.name}{star}"), []).append(operation)
        lines += [f"## {role}", "", *textwrap.wrap(f"For {what}.", WIDTH), ""]
        lines += ["| resource | name | rights |", "|---|---|---|"]
        for (kind, name), allowed in rights.items():
            lines.append(f"| {kind} | `{name}` | {', '.join(allowed)} |")
        lines.append("")
    return page(
        "Access control",
        "The least rights of each service, of applications and of operators, where the brokers "
        "have access control lists. `carpool acls ROLE --principal User:NAME` prints them as "
        "commands of `kafka-acls`, and grants them with `--apply`. Read, Write and Delete imply "
        "Describe. With `kafka.prefix` = `wiki`, topics are named `wiki.rag.*`, and groups and "
        "transactional ids begin with `wiki-` instead of `carpool-`. Delete is for processed "
        "records, which their reader removes. A service without a right of this list says so when "
        "it starts, and stops; without DescribeConfigs or Delete, or a right on a topic that is "
        "best effort, it warns. A right that is taken from a running service is named within "
        "a minute; the service goes on when it is given back.",
        lines,
    )


def exit_codes_page() -> str:
    """Returns what each exit code of `carpool` means."""
    lines: list[str] = []
    for code, meaning in EXIT_CODES.items():
        lines += item(f"`{code}`: {meaning}")
    return page("Exit codes", "How a command of `carpool` ends.", lines)


def commands(app: typer.Typer, name: str) -> Iterator[tuple[str, Any]]:
    """Yields every command below `app` with its full name, groups included, in order.

    `carpool index` and `carpool bench` have applications of their own, imported when they run.
    """
    from bench.cli import app as bench_app
    from cli.index import app as index_app

    yield from below(typer.main.get_command(app), name, {"index": index_app, "bench": bench_app})


def below(command: Any, name: str, apps: dict[str, typer.Typer]) -> Iterator[tuple[str, Any]]:
    """Yields `command` and all commands below it."""
    yield name, command
    for child_name, child in getattr(command, "commands", {}).items():
        child = typer.main.get_command(apps[child_name]) if child_name in apps else child
        yield from below(child, f"{name} {child_name}", {})


def cli_page() -> str:
    """Returns the help of every command."""
    from cli.main import app

    lines: list[str] = []
    for name, command in commands(app, "carpool"):
        context = command.context_class(
            command, info_name=name, terminal_width=WIDTH, max_content_width=WIDTH
        )
        text = [line.rstrip() for line in command.get_help(context).splitlines()]
        lines += [f"## {name}", "", "```text", *text, "```", ""]
    return page(
        "Commands",
        "The help of every command, as `--help` prints it. How commands end: "
        "[exit codes](exit-codes.md).",
        lines,
    )


def main() -> None:
    """Writes every page."""
    for name, text in pages().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
        sys.stdout.write(f"docs/reference/{name}\n")


if __name__ == "__main__":
    main()
