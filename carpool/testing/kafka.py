"""Real Apache Kafka on loopback for tests: one broker or several, from `KAFKA_HOME` (`libs/*.jar`).

Brokers run in KRaft mode. The data of each broker are in a folder of the caller, so that it can be
killed, paused and restarted. Members and brokers count as dead after 6 seconds of silence.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from carpool.errors import ConfigError
from carpool.guard import GuardedProcess
from carpool.kafka.embedded import free_port

CLUSTER_ID = "Y2FycG9vbC1waXRlc3Qtaw"
QUICK_JAVA = ("-Xmx320m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""Little memory, and only the quick compiler: the full compiler uses a core for minutes."""

HOST = "127.0.0.1"
NO_SETTINGS: Mapping[str, object] = MappingProxyType({})
START_TIMEOUT_S = 180.0
SESSION_TIMEOUT_MS = 6_000
"""Silence after which a group member (of the protocol KIP-848) or a broker is taken for dead."""

LOG_CONFIG = """<Configuration><Appenders><Console name="out">
<PatternLayout pattern="%d %p %c{1} %m%n"/></Console></Appenders>
<Loggers><Root level="warn"><AppenderRef ref="out"/></Root></Loggers></Configuration>
"""


def kafka_home() -> Path | None:
    """Returns the distribution of `KAFKA_HOME`, or None without it or without Java."""
    home = os.environ.get("KAFKA_HOME")
    if (
        not home
        or shutil.which("java") is None
        or not list(Path(home, "libs").glob("kafka-server-*.jar"))
    ):
        return None
    return Path(home)


class BrokerPorts(NamedTuple):
    """The ports of one broker. `advertised`: where clients are sent instead of `clients`, or 0."""

    clients: int
    brokers: int
    controllers: int
    advertised: int = 0


class KafkaServer:
    """One broker, alone or a node of a cluster. A context manager; data stay in `folder`."""

    def __init__(
        self,
        folder: Path,
        *,
        node: int = 1,
        ports: Sequence[BrokerPorts] = (),
        java: Sequence[str] = QUICK_JAVA,
        settings: Mapping[str, object] = NO_SETTINGS,
    ) -> None:
        """Writes the configuration and formats the folder. Raises `ConfigError`.

        `ports`: the ports of all nodes of the cluster; this one is number `node`, from 1. Empty:
        one broker on free ports. `java`: options of its virtual machine. `settings`: more
        properties of the broker.
        """
        home = kafka_home()
        if home is None:
            raise ConfigError(
                "no Kafka to start: set KAFKA_HOME to a distribution with libs/*.jar, and install "
                "Java 17"
            )
        ports = ports or [free_ports()]
        self._classpath = str(home.resolve() / "libs" / "*")
        self._folder = folder
        self._java_options = tuple(java)
        self.port = ports[node - 1].clients
        self.brokers_port = ports[node - 1].brokers
        self.advertised_port = ports[node - 1].advertised or self.port
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "log4j2.xml").write_text(LOG_CONFIG)
        self._properties = folder / "server.properties"
        properties = _settings(node, ports, folder / "data") | dict(settings)
        self._properties.write_text(
            "".join(f"{name}={value}\n" for name, value in properties.items())
        )
        options = ("format", "-t", CLUSTER_ID, "-c", str(self._properties), "--ignore-formatted")
        command = self._java(QUICK_JAVA, "kafka.tools.StorageTool", *options)
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ConfigError(f"Kafka cannot be set up: {done.stdout}{done.stderr}")

    @property
    def bootstrap(self) -> str:
        """The address that the broker advertises to clients."""
        return f"{HOST}:{self.advertised_port}"

    @property
    def is_running(self) -> bool:
        """Whether its process exists, paused or not."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        assert self._process is not None, "not started"
        return self._process.pid

    def _java(self, options: Sequence[str], *arguments: str) -> list[str]:
        return ["java", *options, "-cp", self._classpath, *arguments]

    def launch(self) -> None:
        """Starts the process on its data; does not wait."""
        options = (*self._java_options, f"-Dlog4j2.configurationFile={self._folder / 'log4j2.xml'}")
        command = self._java(options, "kafka.Kafka", str(self._properties))
        with (self._folder / "log").open("ab") as output:
            self._process = GuardedProcess[bytes](
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=self._folder
            )

    def wait_ready(self) -> None:
        """Waits for connections. Raises `ConfigError` with the end of its log."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self.is_listening():
            if not self.is_running or time.monotonic() > deadline:
                tail = (self._folder / "log").read_text(errors="replace")[-2_000:]
                self.kill()
                raise ConfigError(f"Kafka did not start:\n{tail}")
            time.sleep(0.1)

    def is_listening(self) -> bool:
        """Whether it accepts connections."""
        try:
            socket.create_connection((HOST, self.port), 0.5).close()
        except OSError:
            return False
        return True

    def start(self) -> None:
        """Starts the broker on its data and waits until it accepts connections."""
        self.launch()
        self.wait_ready()

    def kill(self) -> None:
        """Ends the process as a crash does, also while it is paused."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def pause(self) -> None:
        """Stops all threads, as a stall does: connections stay open without replies."""
        if self.is_running:
            os.kill(self.pid, signal.SIGSTOP)
            os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        """Continues a paused process."""
        if self.is_running:
            os.kill(self.pid, signal.SIGCONT)

    def __enter__(self) -> KafkaServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


class KafkaCluster:
    """Several brokers, each a controller too; three copies, writes need two."""

    def __init__(
        self,
        folder: Path,
        *,
        brokers: int = 3,
        java: Sequence[str] = QUICK_JAVA,
        advertised: Sequence[int] = (),
    ) -> None:
        """Raises as `KafkaServer` does.

        `advertised`: the port of the proxy before each broker; empty: no proxies.
        """
        ports = [free_ports(port) for port in advertised or [0] * brokers]
        self.servers = tuple(
            KafkaServer(folder / f"broker-{node}", node=node, ports=ports, java=java)
            for node in range(1, len(ports) + 1)
        )

    @property
    def bootstrap(self) -> str:
        """The addresses for clients."""
        return ",".join(server.bootstrap for server in self.servers)

    @property
    def own_addresses(self) -> str:
        """The addresses that brokers have among themselves: all requests go past the proxies."""
        return ",".join(f"{HOST}:{server.brokers_port}" for server in self.servers)

    def missing_copies(self) -> int | None:
        """Returns the number of copies out of sync, Kafka's own topics included; None: no reply.

        Blocks for up to 5 seconds.
        """
        try:
            topics = (
                AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
                .list_topics(timeout=5)
                .topics
            )
        except KafkaException:
            return None
        partitions = [each for topic in topics.values() for each in topic.partitions.values()]
        return sum(len(each.replicas) - len(each.isrs) for each in partitions)

    def kill(self) -> None:
        """Ends all brokers as a crash does."""
        for server in self.servers:
            server.kill()

    def __enter__(self) -> KafkaCluster:
        """Starts all brokers and waits until each accepts connections."""
        try:
            for server in self.servers:
                server.launch()
            for server in self.servers:
                server.wait_ready()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


def free_ports(advertised: int = 0) -> BrokerPorts:
    """Returns free ports for a broker; `advertised`: the port of a proxy before it, 0: none."""
    return BrokerPorts(free_port(), free_port(), free_port(), advertised)


def _settings(node: int, ports: Sequence[BrokerPorts], data: Path) -> dict[str, object]:
    own = ports[node - 1]
    replicas = min(3, len(ports))
    in_sync = max(1, replicas - 1)
    voters = ",".join(
        f"{number}@{HOST}:{each.controllers}" for number, each in enumerate(ports, start=1)
    )
    between = f"BROKERS://{HOST}:{own.brokers}"
    return {
        "process.roles": "broker,controller",
        "node.id": node,
        "controller.quorum.voters": voters,
        "controller.listener.names": "CONTROLLER",
        "listeners": f"CLIENTS://{HOST}:{own.clients},{between},"
        f"CONTROLLER://{HOST}:{own.controllers}",
        "advertised.listeners": f"CLIENTS://{HOST}:{own.advertised or own.clients},{between}",
        "inter.broker.listener.name": "BROKERS",
        "listener.security.protocol.map": "CLIENTS:PLAINTEXT,BROKERS:PLAINTEXT,"
        "CONTROLLER:PLAINTEXT",
        "log.dirs": data,
        "min.insync.replicas": in_sync,
        "offsets.topic.replication.factor": replicas,
        "offsets.topic.num.partitions": 8,
        "transaction.state.log.replication.factor": replicas,
        "transaction.state.log.min.isr": in_sync,
        "transaction.state.log.num.partitions": 8,
        "share.coordinator.state.topic.replication.factor": replicas,
        "share.coordinator.state.topic.min.isr": in_sync,
        "group.initial.rebalance.delay.ms": 0,
        "group.min.session.timeout.ms": 1_000,
        "group.consumer.session.timeout.ms": SESSION_TIMEOUT_MS,
        "group.consumer.min.session.timeout.ms": 1_000,
        "group.consumer.heartbeat.interval.ms": 500,
        "group.consumer.min.heartbeat.interval.ms": 500,
        "broker.session.timeout.ms": SESSION_TIMEOUT_MS,
        "auto.create.topics.enable": "false",
    }
