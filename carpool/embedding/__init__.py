"""How does text become a vector? The only loader of models, and their fingerprints.

*Invariant:* rows are L2-normalised float32, so an inner product is a cosine. *Invariant:* the index
stores the fingerprint of its model, and a query that another model embedded is refused.
*Invariant:* a model gives the vectors of sentence-transformers: its export is compared with torch
before it is used. *Invariant:* a question in the cache gets the same bytes again, and a failure
empties the cache. *Invariant:* torch is imported only for a model that cannot be exported, and
nothing is downloaded or sent to anybody. *Invariant:* this package is imported without those of the
extra `services`; its modules need them. Absent on purpose: rerankers, remote embedding services,
GPUs, weights of 8 bits (a tenth of the best passages are others).
"""

from carpool.embedding.embedder import Embedder
from carpool.embedding.settings import EmbeddingSettings

__all__ = ["Embedder", "EmbeddingSettings"]
