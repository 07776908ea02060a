"""Writes header names of any bytes through librdkafka; confluent-kafka refuses them."""

from __future__ import annotations

import ctypes
from pathlib import Path

import confluent_kafka

PRODUCER = 0
TOPIC, VALUE, MSGFLAGS, HEADERS, END = 1, 4, 7, 10, 0
COPY = 2


def write_with_header_name(bootstrap: str, topic: str, value: bytes, name: bytes) -> None:
    """Writes one record with one header, and waits until the broker has it."""
    folder = Path(confluent_kafka.__file__).parent.parent / "confluent_kafka.libs"
    library = ctypes.CDLL(str(next(folder.glob("librdkafka*"))))
    pointer, text, size = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t
    for function in ("rd_kafka_conf_new", "rd_kafka_new", "rd_kafka_headers_new"):
        getattr(library, function).restype = pointer
    library.rd_kafka_conf_set.argtypes = [pointer, text, text, text, size]
    library.rd_kafka_new.argtypes = [ctypes.c_int, pointer, text, size]
    library.rd_kafka_header_add.argtypes = [pointer, text, ctypes.c_ssize_t, text, ctypes.c_ssize_t]
    library.rd_kafka_flush.argtypes = [pointer, ctypes.c_int]
    library.rd_kafka_destroy.argtypes = [pointer]
    error = ctypes.create_string_buffer(512)
    config = library.rd_kafka_conf_new()
    assert (
        library.rd_kafka_conf_set(config, b"bootstrap.servers", bootstrap.encode(), error, 512) == 0
    ), error.value
    producer = library.rd_kafka_new(PRODUCER, config, error, 512)
    headers = library.rd_kafka_headers_new(size(1))
    assert library.rd_kafka_header_add(headers, name, len(name), b"v", 1) == 0
    written = library.rd_kafka_producev(
        pointer(producer),
        *(ctypes.c_int(TOPIC), text(topic.encode())),
        *(ctypes.c_int(VALUE), text(value), size(len(value))),
        *(ctypes.c_int(MSGFLAGS), ctypes.c_int(COPY)),
        *(ctypes.c_int(HEADERS), pointer(headers)),
        ctypes.c_int(END),
    )
    assert written == 0
    assert library.rd_kafka_flush(producer, 10_000) == 0
    library.rd_kafka_destroy(producer)
