"""What two publications of one query id must have in common to be the same question: a digest of
what shapes the answer.
"""

from __future__ import annotations

import hashlib

import msgspec

from schemas.query import Generation, Query

DIGEST_BYTES = 16

_encoder = msgspec.json.Encoder(order="deterministic")


def query_digest(query: Query) -> str:
    """Returns a digest (BLAKE2b, hexadecimal) of what `query` asks for, the same for every
    publication of it.

    It covers the text, the model of its vector, `top_k`, `nprobe`, `recall_target`, the tenant, the
    filter, the conversation, the history and the wishes for the generation, each as published: a
    default that is spelt out is another wish. It leaves out what says when and how urgently
    (deadline, priority, attempt), who gets drafts, and the place in a workflow. It also leaves out
    the vector, which travels no further than to the searcher: the text beside it stands for it.
    """
    asked = (
        query.text,
        query.embedding_model,
        query.top_k,
        query.nprobe,
        query.recall_target,
        query.tenant,
        query.filter,
        query.conversation_id,
        query.history,
        query.generation or Generation(),
    )
    return hashlib.blake2b(_encoder.encode(asked), digest_size=DIGEST_BYTES).hexdigest()
