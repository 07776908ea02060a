"""`carpool corpus`: puts documents into the live corpus, deletes them, and looks at them."""

from __future__ import annotations

import asyncio
import io
import sys
from dataclasses import asdict, dataclass
from typing import Annotated

import typer

from carpool.clock import SystemClock
from carpool.errors import ConfigError
from cli.console import people, print_json, print_json_line, print_plain, quiet_logs, show_result
from cli.corpus_shown import PutReport, facts_table, print_document, state_table
from cli.exit_codes import FAILED, INTERRUPTED
from cli.interrupts import stopped_by_signals
from cli.options import ClientArgs, JsonOption, command_group, spread
from cli.settings import ClientSide
from producers import Client
from producers.corpus.files import Root
from producers.corpus.log import corpus_state, document_state, names_of, newest
from producers.corpus.put import CorpusPut
from producers.corpus.save import save_base
from producers.documents import Put
from schemas.document import DocumentKey
from schemas.topics import DOCUMENTS

CLOCK = SystemClock()

app = command_group(
    "corpus",
    """Put documents into the live corpus, change and delete them, while questions are answered.

\b
  carpool corpus put docs/             put a folder; again: only what has changed is sent
  carpool corpus put docs/ --delete    also delete what is no longer in the folder
  carpool corpus get docs/guide.md     what is known of a document
  carpool corpus status                how much there is, and what the indexer has to do
  carpool corpus save                  make an index of all that there is
""",
)
app.callback()(quiet_logs)

Owner = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Owner of the documents: the first part of their names."),
]
Name = Annotated[
    str, typer.Argument(metavar="ID", help="Its id, or OWNER/ID as citations show it.")
]


@dataclass(frozen=True, kw_only=True)
class PutOptions:
    """What a put does."""

    owner: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Owner of the documents. Default: the name of the folder, of that which the file "
            "is in, or of a file of JSON lines without its ending; standard input has none.",
        ),
    ] = None
    delete: Annotated[
        bool,
        typer.Option("--delete", help="Delete documents of this owner that are not in this put."),
    ] = False
    wait: Annotated[
        bool,
        typer.Option("--wait/--no-wait", help="Wait until the indexer has what was sent."),
    ] = True


@app.command()
@spread
def put(
    root: Annotated[
        str,
        typer.Argument(
            metavar="DIR|FILE|-", help="A folder, a file, or JSON lines on standard input."
        ),
    ],
    options: PutOptions,
    as_json: JsonOption = False,
    *,
    sources: ClientArgs,
) -> None:
    """Put documents: Markdown (.md, .markdown), text (.txt), JSON lines (.jsonl, .jsonl.gz).

    A Markdown or text file is a document: its id is the path in the folder, its title the first
    heading or the name of the file. So is a line of JSON: {"id", "title", "text", "metadata"}, with
    `_id` (BEIR) for `id`, or `passages` for `text`. The indexer cuts texts into passages, along
    headings and sentences. Names that begin with a dot, and other files, are passed over.

    What the log has is not sent: the same command goes on after Ctrl-C, and sends what has changed.
    At most 1,000 passages are sent ahead of the indexer, so that others need not wait.

    Exit code 1: a document was refused, here or by the indexer; the others are put. 130: after
    Ctrl-C.

    \b
    Examples:
      carpool corpus put docs/
      carpool corpus put docs/ --owner handbook --delete
      carpool corpus put pages.jsonl.gz --no-wait
      pandoc -t gfm a.html | jq -Rs '{id: "a", text: .}' -c | carpool corpus put - --owner web
    """
    stdin = sys.stdin.buffer if sys.stdin else io.BytesIO()  # None: it is closed
    settings, found = sources.settings(), Root(root, stdin)
    owner = found.owner if options.owner is None else options.owner
    if options.delete and not (found.is_whole and owner):
        raise ConfigError(
            "--delete needs a folder or a file of JSON lines, and an owner (--owner): it deletes "
            "the documents of one owner that are not in it"
        )
    report = PutReport(people())
    one = CorpusPut(settings.kafka, settings.client, CLOCK, report.refused, report.progress)
    with stopped_by_signals(one.stop):
        one.run(owner, found, deletes=options.delete, waits=options.wait)
    report.end(one, found, owner, as_json=as_json)
    if one.is_stopped:
        raise typer.Exit(INTERRUPTED)
    if one.counts["refused"] or one.kept:
        raise typer.Exit(FAILED)


@app.command()
@spread
def get(
    name: Name, owner: Owner = None, as_json: JsonOption = False, *, sources: ClientArgs
) -> None:
    """Show the newest revision of a document, its passages, and whether the indexer has it.

    \b
    Examples:
      carpool corpus get docs/guides/batch.md
      carpool corpus get guides/batch.md --owner docs --json
    """
    kafka = sources.settings().kafka
    keys = [key.encode() for key in names_of(name, owner)]
    messages = newest(kafka, CLOCK, DOCUMENTS.name, keys)
    if not messages:
        raise _unknown(name)
    chosen = next(messages[key] for key in keys if key in messages)
    found = document_state(kafka, CLOCK, chosen)
    (print_json if as_json else print_document)(found)


@app.command()
@spread
def status(as_json: JsonOption = False, *, sources: ClientArgs) -> None:
    """Show how many documents and passages there are, what was refused, and what waits.

    Reads all of the logs of the corpus. `documents` are those in rag.documents.v1; `waiting` is how
    many of its records the indexer has not answered. The position is the highest offset that the
    indexer has answered in each partition.

    \b
    Example:
      carpool corpus status --json
    """
    found = corpus_state(sources.settings().kafka, CLOCK)
    show_result(found, state_table(found), as_json=as_json)


@app.command()
@spread
def delete(
    names: Annotated[
        list[str],
        typer.Argument(metavar="ID...", help="Ids, or OWNER/ID as citations show them."),
    ],
    owner: Owner = None,
    as_json: JsonOption = False,
    *,
    sources: ClientArgs,
) -> None:
    """Delete documents: no search finds them once the indexer has read this.

    Nothing is deleted where one of them is not there.

    \b
    Examples:
      carpool corpus delete docs/old.md
      carpool corpus delete old.md older.md --owner docs
    """
    settings = sources.settings()
    meant = {name: names_of(name, owner) for name in names}
    raw_keys = {key.encode() for keys in meant.values() for key in keys}
    messages = newest(settings.kafka, CLOCK, DOCUMENTS.name, raw_keys)
    present = {key for key, message in messages.items() if message.value is not None}
    chosen = {}
    for name, keys in meant.items():
        fit = [key for key in keys if key.encode() in present]
        if not fit:
            raise _unknown(name)
        chosen[name] = fit[0]
    for key, made in asyncio.run(_delete(settings, list(chosen.values()))).items():
        if as_json:
            print_json_line(key._asdict() | asdict(made))
        else:
            print_plain(f"deleted {key.shown} (partition {made.partition}, offset {made.offset})")


async def _delete(settings: ClientSide, keys: list[DocumentKey]) -> dict[DocumentKey, Put]:
    async with Client(kafka=settings.kafka, settings=settings.client) as client:
        puts = await asyncio.gather(*(client.delete(key.id, owner=key.owner) for key in keys))
    return dict(zip(keys, puts, strict=True))


def _unknown(name: str) -> ConfigError:
    return ConfigError(
        f"there is no document {name!r} in {DOCUMENTS.name}: give OWNER/ID, or its id with --owner"
    )


@app.command()
@spread
def save(
    retrain: Annotated[
        bool,
        typer.Option(
            "--retrain",
            help="With new centroids, for the documents of now. Restart groupers and searchers "
            "afterwards.",
        ),
    ] = False,
    as_json: JsonOption = False,
    *,
    sources: ClientArgs,
) -> None:
    """Save a base: an index of all documents that are indexed now.

    Searchers have documents that no base has in memory (searcher.fresh_bytes), and read them again
    when they start. The indexer saves a base when these take half of it; this command asks for one
    now, and waits for it. Centroids stay as they are; at twice the passages of their training, or
    when more than 5 % are in the zero cluster (`carpool index stats`), --retrain makes searches
    faster.
    """
    settings = sources.settings()
    base = save_base(settings.kafka, settings.client, CLOCK, people().print, retrain=retrain)
    assert base is not None, "nothing ends it earlier"
    shown = {"base": base.name, "rows": base.rows, "folder": base.folder}
    show_result(base, facts_table(shown), as_json=as_json)
