"""The digest of what shapes an answer: publications of one id with one digest ask the same."""

from __future__ import annotations

import hashlib

import msgspec

from schemas.query import Generation, Query, root_of

DIGEST_BYTES = 16

_encoder = msgspec.json.Encoder(order="deterministic")


def query_digest(query: Query) -> str:
    """Returns a digest (BLAKE2b, hexadecimal) of the question, the same for every publication.

    It covers the text, the model of the vector, `top_k`, `nprobe`, `recall_target`, the tenant, the
    filter, the conversation, the generation options, `search_mode`, the workflow, the bound, the
    instructions, earlier messages and `passages`, as published: an explicit default differs from
    none. It omits deadline, priority and attempt, and the vector, which the generator does not
    receive; the text represents it. For a step of a
    workflow it is that of the published query.
    """
    query = root_of(query)
    asked: tuple[object, ...] = (
        query.text,
        query.embedding_model,
        query.top_k,
        query.nprobe,
        query.recall_target,
        query.tenant,
        query.filter,
        query.conversation_id,
        None,  # no field: it keeps the digests of answered questions
        query.generation or Generation(),
        # Digests of questions without these are those of earlier versions.
        *((query.search_mode,) if query.search_mode is not None else ()),
        *(("workflow", query.workflow) if query.workflow is not None else ()),
        *(("bound", sorted(query.bound.items())) if query.bound is not None else ()),
        *(("instructions", query.instructions) if query.instructions else ()),
        *(("messages", query.messages) if query.messages else ()),
        *(("passages",) if query.passages else ()),
    )
    return hashlib.blake2b(_encoder.encode(asked), digest_size=DIGEST_BYTES).hexdigest()
