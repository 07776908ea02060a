"""`carpool gateway`: OpenAI's API and MCP; `gateway-key`: a key for it; `mcp`: MCP on stdio."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Annotated

import msgspec
import typer

from cli.console import people, print_plain
from cli.options import ClientArgs, spread
from cli.settings import GatewaySide, load_client_side
from producers import Client


@spread
def gateway(
    host: Annotated[str | None, typer.Option(help="Address to listen at.")] = None,
    port: Annotated[int | None, typer.Option(help="Port; 0: a free one.")] = None,
    tell: Annotated[
        bool, typer.Option("--tell/--no-tell", help="Print address and key at the start.")
    ] = True,
    *,
    sources: ClientArgs,
) -> None:
    """Run the gateway: OpenAI's API for applications that have no Kafka client.

    Serves /v1/responses, /v1/chat/completions and /v1/models to any number of clients, and asks
    their questions through Kafka. The model is `carpool`, or `carpool/NAME` for a workflow. On
    loopback it makes a key at its first start, and prints it. Elsewhere it needs gateway.keys_file,
    and TLS. SIGTERM finishes the requests in progress.

    \b
    Examples:
      carpool gateway
      carpool gateway --host 0.0.0.0 --set gateway.keys_file=keys.jsonl \\
          --set gateway.tls_cert=cert.pem --set gateway.tls_key=key.pem
    """
    from carpool.workflow.load import load_programs
    from gateway.service import run_gateway

    flags = {"gateway": {"host": host, "port": port}, "kafka": {}}
    settings = load_client_side(sources.given(**flags), GatewaySide)
    programs = load_programs(settings.workflow.modules).values()
    run_gateway(
        settings.gateway,
        settings.kafka,
        settings.client,
        settings.http,
        settings.log,
        workflows=tuple(sorted({program.name for program in programs})),
        tell=print_plain if tell else None,
    )


@spread
def mcp(*, sources: ClientArgs) -> None:
    """Serve one agent by MCP on standard input and output: the tools search, fetch and ask.

    For agents that start their servers themselves; `carpool gateway` has the same tools at /mcp.

    \b
    Example:
      claude mcp add carpool -- carpool mcp
    """
    import carpool
    from gateway.agents import run_stdio
    from gateway.guard import passage_address
    from gateway.keys import KEY_FILE, keys_of
    from gateway.plan.objects import AddressOf

    settings = load_client_side(sources.given(kafka={}), GatewaySide)
    base_url = settings.gateway.base_url(settings.gateway.port)
    client = Client(kafka=settings.kafka, settings=settings.client)
    # An agent starts this in any folder: without a key there is no gateway that knows the link.
    address_of: AddressOf = "carpool:{}".format
    if settings.gateway.keys_file or KEY_FILE.exists():
        address_of = partial(passage_address, base_url, keys_of(settings.gateway))
    asyncio.run(run_stdio(client, address_of, carpool.__version__))


def gateway_key(
    owner: Annotated[str, typer.Argument(help="Whose questions they are.")],
    per_minute: Annotated[int, typer.Option(min=0, help="Requests a minute; 0: no limit.")] = 0,
    cost_a_day: Annotated[
        float,
        typer.Option(min=0, help="What its answers may cost a day, by client.price_in and _out."),
    ] = 0.0,
) -> None:
    """Make a key for the gateway: prints the line of gateway.keys_file, and the key.

    The line, on standard output, has the digest of the key only. The key is shown once, on standard
    error. Each gateway counts the limits for itself, from its start on.

    \b
    Example:
      carpool gateway-key team-a --per-minute 600 > keys.jsonl
    """
    from gateway.keys import key_of, new_key

    text = new_key()
    people().print(f"the key of {owner}, which is not stored: {text}", soft_wrap=True)
    line = key_of(text, owner, per_minute=per_minute, cost_a_day=cost_a_day)
    print_plain(msgspec.json.encode(line).decode())
