"""A real Apache Kafka broker for tests, started from `KAFKA_HOME` (a distribution: its `libs/*.jar`) on loopback.

One node in KRaft mode, its data in a folder of the caller's, so that it can be killed and started again on it.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from pathlib import Path
from types import TracebackType

from carpool.errors import ConfigError
from carpool.kafka.embedded import free_port

CLUSTER_ID = "Y2FycG9vbC1waXRlc3Qtaw"
HEAP = "320m"
LOG_CONFIG = """<Configuration><Appenders><Console name="out"><PatternLayout pattern="%d %p %c{1} %m%n"/></Console></Appenders>
<Loggers><Root level="warn"><AppenderRef ref="out"/></Root></Loggers></Configuration>
"""


def kafka_home() -> Path | None:
    """Returns the Kafka distribution that `KAFKA_HOME` names, or None where there is none or no Java to run it."""
    home = os.environ.get("KAFKA_HOME")
    if not home or shutil.which("java") is None or not list(Path(home, "libs").glob("kafka-server-*.jar")):
        return None
    return Path(home)


class KafkaServer:
    """One broker. A context manager: its process ends with it, its data stay in `folder`."""

    def __init__(self, folder: Path, *, home: Path | None = None) -> None:
        """Chooses ports and writes the configuration. Raises `ConfigError` without a distribution or Java."""
        found = home or kafka_home()
        if found is None:
            raise ConfigError(
                "no Kafka to start: set KAFKA_HOME to a distribution with libs/*.jar, and install Java 17"
            )
        self._classpath = str(found.resolve() / "libs" / "*")
        self._folder = folder
        self.port = free_port()
        controller_port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "log4j2.xml").write_text(LOG_CONFIG)
        settings = {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
            "controller.listener.names": "CONTROLLER",
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{controller_port}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{self.port}",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "log.dirs": folder / "data",
            "offsets.topic.replication.factor": 1,
            "offsets.topic.num.partitions": 8,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "share.coordinator.state.topic.replication.factor": 1,
            "share.coordinator.state.topic.min.isr": 1,
            "group.initial.rebalance.delay.ms": 0,
            "group.min.session.timeout.ms": 1_000,
            "auto.create.topics.enable": "false",
        }
        self._properties = folder / "server.properties"
        self._properties.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        self._run(
            "kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(self._properties), "--ignore-formatted"
        )

    @property
    def bootstrap(self) -> str:
        """The address for clients."""
        return f"127.0.0.1:{self.port}"

    def _java(self, *arguments: str) -> list[str]:
        return ["java", f"-Xmx{HEAP}", "-XX:+UseSerialGC", "-cp", self._classpath, *arguments]

    def _run(self, *arguments: str) -> None:
        done = subprocess.run(self._java(*arguments), capture_output=True, text=True, check=False)
        if done.returncode:
            raise ConfigError(f"Kafka cannot be set up: {done.stdout}{done.stderr}")

    def start(self, timeout_s: float = 60.0) -> None:
        """Starts the broker, on its old data if it has any, and waits until it accepts connections."""
        command = self._java(
            f"-Dlog4j2.configurationFile={self._folder / 'log4j2.xml'}", "kafka.Kafka", str(self._properties)
        )
        with (self._folder / "log").open("ab") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                cwd=self._folder,
            )
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 0.5).close()
                return
            except OSError:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    tail = (self._folder / "log").read_text(errors="replace")[-2_000:]
                    self.kill()
                    raise ConfigError(f"Kafka did not start:\n{tail}") from None
                time.sleep(0.1)

    def kill(self) -> None:
        """Ends it as a crash does."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def __enter__(self) -> KafkaServer:
        """Starts it."""
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ends it: nothing in a test's broker is worth a clean stop."""
        self.kill()
