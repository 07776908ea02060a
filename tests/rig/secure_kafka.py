"""A real Kafka broker with TLS, client certificates, SASL and access control, for tests.

Listeners in addition to the plaintext one of `KafkaServer`: TLS without authentication; TLS with
client certificates; SASL over TLS with PLAIN, SCRAM-SHA-512 and OAUTHBEARER (unsecured tokens). A
client without authentication is a super user; all others have only the rights that they are given.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclPermissionType,
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from carpool.kafka.acls import Acl
from carpool.kafka.admin import acl_binding
from carpool.kafka.embedded import free_port
from carpool.testing.kafka import HOST, KafkaServer, free_ports
from tests.rig.certificates import CertificateAuthority

SCRAM_ITERATIONS = 4_096
REQUEST_TIMEOUT_S = 180.0


class SecureKafkaServer(KafkaServer):
    """One broker with secure listeners. `users`: passwords by user name, for PLAIN and SCRAM."""

    def __init__(self, folder: Path, *, users: Mapping[str, str]) -> None:
        """Makes certificates and configuration. Raises as `KafkaServer` does."""
        self.authority = CertificateAuthority(folder / "certificates")
        self._users = dict(users)
        ports = free_ports()
        self._secure_ports = {name: free_port() for name in ("TLS", "MTLS", "SASL")}
        super().__init__(folder, ports=[ports], settings=self._security(ports))

    @property
    def tls(self) -> str:
        """The address of the listener with TLS, for clients without authentication."""
        return f"{HOST}:{self._secure_ports['TLS']}"

    @property
    def mtls(self) -> str:
        """The address of the listener that asks for client certificates; CN is the user."""
        return f"{HOST}:{self._secure_ports['MTLS']}"

    @property
    def sasl(self) -> str:
        """The address of the listener with SASL over TLS."""
        return f"{HOST}:{self._secure_ports['SASL']}"

    def start(self) -> None:
        """Starts the broker, and makes the users of SCRAM."""
        super().start()
        changes = [
            UserScramCredentialUpsertion(
                user,
                ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, SCRAM_ITERATIONS),
                password.encode(),
            )
            for user, password in self._users.items()
        ]
        admin = self._admin()
        for future in admin.alter_user_scram_credentials(changes).values():
            future.result(REQUEST_TIMEOUT_S)

    def allow(self, user: str, acls: Iterable[Acl]) -> None:
        """Gives rights to a user."""
        admin = self._admin()
        for future in admin.create_acls(
            [_binding(user, acl) for acl in acls], request_timeout=REQUEST_TIMEOUT_S
        ).values():
            future.result(REQUEST_TIMEOUT_S)

    @contextmanager
    def without(
        self, user: str, acls: Iterable[Acl], *, with_implied: bool = False
    ) -> Iterator[None]:
        """Takes these rights away, also where a broader right allows the same, until the end.

        `with_implied`: Describe too, which Read and Write imply.
        """
        taken = list(acls)
        denied = [_binding(user, acl, AclPermissionType.DENY) for acl in taken]
        admin = self._admin()
        for future in admin.create_acls(denied, request_timeout=REQUEST_TIMEOUT_S).values():
            future.result(REQUEST_TIMEOUT_S)
        if with_implied:
            self._delete(_binding(user, acl) for acl in taken)
        try:
            yield
        finally:
            self.allow(user, taken)
            self._delete(denied)

    def _delete(self, bindings: Iterable[AclBinding]) -> None:
        filters = [_filter_of(each) for each in bindings]
        admin = self._admin()
        for future in admin.delete_acls(filters, request_timeout=REQUEST_TIMEOUT_S).values():
            future.result(REQUEST_TIMEOUT_S)

    def _admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})

    def _security(self, ports: object) -> dict[str, object]:
        names = ("clients", "brokers", "controllers")
        clients, brokers, controllers = (getattr(ports, name) for name in names)
        plain = f"CLIENTS://{HOST}:{clients},BROKERS://{HOST}:{brokers}"
        secure = ",".join(f"{name}://{HOST}:{port}" for name, port in self._secure_ports.items())
        sasl = "listener.name.sasl"
        module = "org.apache.kafka.common.security"
        plain_users = " ".join(f'user_{user}="{it}"' for user, it in self._users.items())
        return {
            "listeners": f"{plain},{secure},CONTROLLER://{HOST}:{controllers}",
            "advertised.listeners": f"{plain},{secure}",
            "listener.security.protocol.map": "CLIENTS:PLAINTEXT,BROKERS:PLAINTEXT,"
            "CONTROLLER:PLAINTEXT,TLS:SSL,MTLS:SSL,SASL:SASL_SSL",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": self.authority.sign("broker").both,
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": self.authority.certificate,
            "listener.name.mtls.ssl.client.auth": "required",
            "listener.name.mtls.ssl.principal.mapping.rules": "RULE:^CN=([^,]+).*$/$1/,DEFAULT",
            f"{sasl}.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512,OAUTHBEARER",
            f"{sasl}.plain.sasl.jaas.config": f"{module}.plain.PlainLoginModule required "
            f"{plain_users};",
            f"{sasl}.scram-sha-512.sasl.jaas.config": f"{module}.scram.ScramLoginModule required;",
            f"{sasl}.oauthbearer.sasl.jaas.config": f"{module}.oauthbearer.OAuthBearerLoginModule "
            'required unsecuredLoginStringClaim_sub="broker";',
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
        }


def _binding(
    user: str, acl: Acl, permission: AclPermissionType = AclPermissionType.ALLOW
) -> AclBinding:
    return acl_binding(f"User:{user}", acl, permission)


def _filter_of(acl: AclBinding) -> AclBindingFilter:
    return AclBindingFilter(
        acl.restype,
        acl.name,
        acl.resource_pattern_type,
        acl.principal,
        acl.host,
        acl.operation,
        acl.permission_type,
    )
