"""The section `gateway`."""

from __future__ import annotations

from ipaddress import ip_address
from typing import Annotated
from urllib.parse import urlsplit

from msgspec import Meta

from carpool.settings import Settings

LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")


class GatewaySettings(Settings, frozen=True, kw_only=True):
    """Where the gateway listens, who may come in, and what a request may take."""

    host: Annotated[
        str,
        Meta(min_length=1, description="Address to listen at; another than loopback needs keys."),
    ] = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65_535, description="Port; 0: a free one.")] = 8600
    keys_file: Annotated[
        str,
        Meta(description="Keys that may come in, a line of JSON each (`carpool gateway-key`)."),
    ] = ""
    tls_cert: Annotated[str, Meta(description="Certificate chain, PEM; with gateway.tls_key.")] = ""
    tls_key: Annotated[str, Meta(description="Private key of the certificate, PEM.")] = ""
    behind_proxy: Annotated[
        bool, Meta(description="A proxy in front of it has TLS, so it may listen without.")
    ] = False
    public_url: Annotated[
        str,
        Meta(
            description="Address of it that clients know, in links to passages. Default: where it "
            "listens."
        ),
    ] = ""
    hosts: Annotated[
        str,
        Meta(
            description="Host names that requests may give, in addition to the address that it "
            "listens at; several with commas."
        ),
    ] = ""
    body_bytes_max: Annotated[
        int,
        Meta(ge=1_024, le=1 << 30, description="Largest body of a request without a file, bytes."),
    ] = 512 * 1024
    file_bytes_max: Annotated[
        int, Meta(ge=1_024, le=1 << 30, description="Largest file of a batch, bytes.")
    ] = 200 * 1000 * 1000
    connections_max: Annotated[
        int,
        Meta(
            ge=1,
            le=1 << 20,
            description="Connections at a time; for one more, the one that has waited longest "
            "without a request is closed.",
        ),
    ] = 2_000

    def base_url(self, port: int) -> str:
        """Returns the address that clients know; `port`: where it listens."""
        scheme = "https" if self.tls_cert else "http"
        name = f"[{self.host}]" if ":" in self.host else self.host
        return self.public_url.rstrip("/") or f"{scheme}://{name}:{port}"

    def names(self) -> frozenset[str]:
        """Returns the host names that a request may give."""
        local = LOCAL_NAMES if is_loopback(self.host) else ()
        known = urlsplit(self.public_url).hostname or ""
        names = (*local, self.host, known, *self.hosts.split(","))
        return frozenset(name.strip().lower() for name in names if name.strip())

    def check(self) -> list[str]:
        problems = []
        if bool(self.tls_cert) != bool(self.tls_key):
            problems.append("gateway.tls_cert and gateway.tls_key come together")
        if not is_loopback(self.host) and not self.keys_file:
            problems.append(
                f"gateway.host {self.host} is reached from elsewhere: set gateway.keys_file"
            )
        if self.host in ("0.0.0.0", "::") and not self.public_url:  # noqa: S104
            problems.append(
                f"gateway.host {self.host} is no address that a client can use: set "
                "gateway.public_url, which links name"
            )
        if not (is_loopback(self.host) or self.tls_cert or self.behind_proxy):
            problems.append(
                f"gateway.host {self.host} is reached from elsewhere: set gateway.tls_cert and "
                "gateway.tls_key, or gateway.behind_proxy=true where a proxy in front has TLS"
            )
        return problems


def is_loopback(host: str) -> bool:
    """Returns whether an address is reached from this machine only."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
