"""The digest of a document's key, by which indexes and folds know it."""

from __future__ import annotations

from hashlib import blake2b

DIGEST_BYTES = 16
"""Of a key. The chance that any two of a billion keys have the same digest is 1e-21."""


def digest_of(key: bytes) -> bytes:
    """Returns the digest of a document's key, by which a base and a fold know it."""
    return blake2b(key, digest_size=DIGEST_BYTES, key=b"carpool document").digest()
