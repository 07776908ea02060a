"""The instance id of this process: its name among the members of its service."""

from __future__ import annotations

import re
import socket

from carpool.kafka.settings import KafkaSettings


def configured_instance_id(settings: KafkaSettings) -> str:
    """Returns `instance_id`, or the host's name with only the characters of an id."""
    host = re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname())[:64]
    return settings.instance_id or host or "member"
