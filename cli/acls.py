"""`carpool acls`: the rights at the brokers that services and applications need."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from carpool.errors import ConfigError
from carpool.kafka.acls import ROLES, acls_of, kafka_acls_lines
from carpool.kafka.admin import allow
from carpool.terminal import print_plain
from cli.console import print_json
from cli.options import ClientArgs, JsonOption, spread


@spread
def acls(
    role: Annotated[
        str, typer.Argument(metavar="ROLE", help=f"One of {', '.join(ROLES)}; default: all.")
    ] = "",
    principal: Annotated[
        str, typer.Option(help="The Kafka user; default: User: and the role.")
    ] = "",
    apply: Annotated[
        bool, typer.Option("--apply", help="Give the rights instead of printing commands.")
    ] = False,
    as_json: JsonOption = False,
    *,
    sources: ClientArgs,
) -> None:
    """Print the least rights of each role, as commands of Kafka's kafka-acls. Asks no broker.

    With --apply it asks the brokers to give them, as a user with Alter on the cluster. The brokers
    need an authorizer.

    \b
    Examples:
      carpool acls generator --principal User:rag-generator > acls.sh
      carpool acls --apply --config admin.toml
    """
    if role and role not in ROLES:
        raise ConfigError(f"there is no role {role!r}; there are {', '.join(ROLES)}")
    if apply and as_json:
        raise ConfigError("--apply gives the rights and --json prints them: choose one")
    kafka = sources.settings().kafka
    found = {name: acls_of(name, kafka) for name in ROLES if role in ("", name)}
    if as_json:
        print_json({name: [asdict(acl) for acl in each] for name, each in found.items()})
        return
    if apply:
        rights = [(principal or f"User:{name}", acl) for name in found for acl in found[name]]
        allow(kafka, rights)
        print_plain(f"given: {', '.join(dict.fromkeys(user for user, _ in rights))}")
        return
    for name, each in found.items():
        user = principal or f"User:{name}"
        for line in kafka_acls_lines(each, principal=user, bootstrap=kafka.bootstrap):
            print_plain(line)
