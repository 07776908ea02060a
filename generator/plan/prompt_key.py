"""The prompt key: a digest of all that decides an answer. Equal keys ask a model the same."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import msgspec

DIGEST_BYTES = 16

_encoder = msgspec.json.Encoder(order="deterministic")


def prompt_key(
    *,
    prompt_hash: str,
    model: str,
    max_tokens: int,
    temperature: float,
    seed: int | None,
    passages: Sequence[str],
    tenant: tuple[str, str],
) -> str | None:
    """Returns the key (BLAKE2b, hexadecimal); None: the model may answer otherwise the next time.

    Only temperature 0 or a seed makes an answer that can be given again. `prompt_hash` is that of
    the filled template. `passages` are the ids of those in the prompt, for the citations. `tenant`
    has that of the record's header, and of the query.
    """
    if temperature != 0 and seed is None:
        return None
    decides: tuple[object, ...] = (
        prompt_hash,
        model,
        max_tokens,
        float(temperature),
        seed,
        passages,
        tenant,
    )
    return hashlib.blake2b(_encoder.encode(decides), digest_size=DIGEST_BYTES).hexdigest()
