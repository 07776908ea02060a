"""The digests by which answers are found again: of a question, and of a prompt. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from schemas.query import Generation, Query, root_of

DIGEST_BYTES = 16

_encoder = msgspec.json.Encoder(order="deterministic")


def query_digest(query: Query) -> str:
    """Returns a digest (BLAKE2b, hexadecimal) of the question, the same for every publication.

    It covers the text, the model of the vector, `top_k`, `nprobe`, `recall_target`, the tenant, the
    filter, the conversation, the generation options, `search_mode` and the workflow, each as
    published: an explicit default differs from none. It omits deadline, priority and attempt, and
    the vector, which the generator does not receive; the text represents it. For a step of a
    workflow it is that of the published query.
    """
    query = root_of(query)
    return _digest(
        query.text,
        query.embedding_model,
        query.top_k,
        query.nprobe,
        query.recall_target,
        query.tenant,
        query.filter,
        query.conversation_id,
        None,
        query.generation or Generation(),
        # Digests of questions without these are those of earlier versions.
        *((query.search_mode,) if query.search_mode is not None else ()),
        *(("workflow", query.workflow) if query.workflow is not None else ()),
    )


def prompt_key(
    *,
    prompt_hash: str,
    form: Mapping[str, Any] | str | None,
    model: str,
    max_tokens: int,
    temperature: float,
    seed: int | None,
    passages: Sequence[str],
    index_version: str,
    tenant: tuple[str, str],
) -> str | None:
    """Returns a digest of all that decides an answer: equal keys ask a model the same.

    None: the model may answer otherwise the next time.

    Only temperature 0 or a seed makes an answer that can be given again. `prompt_hash`: of the
    filled template. `form`: the JSON Schema or the regular expression that the answer must match.
    `passages`: the ids of those in the prompt, for the citations. `tenant`: of the record's header,
    and of the query.
    """
    if temperature != 0 and seed is None:
        return None
    return _digest(
        prompt_hash,
        form,
        model,
        max_tokens,
        float(temperature),
        seed,
        passages,
        index_version,
        tenant,
    )


def _digest(*values: object) -> str:
    """Returns a BLAKE2b digest in hexadecimal."""
    return hashlib.blake2b(_encoder.encode(values), digest_size=DIGEST_BYTES).hexdigest()
