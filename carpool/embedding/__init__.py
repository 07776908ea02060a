"""How does text become a vector? The only loader of models, and their fingerprints.

*Invariant:* rows are L2-normalised float32, so an inner product is a cosine. *Invariant:* the index
stores the fingerprint of its model, and a query that another model embedded is refused.
*Invariant:* torch is imported only to load a real model, and nothing is downloaded unless a setting
allows it. Absent on purpose: rerankers, remote embedding services, GPUs.
"""

from carpool.embedding.embedder import Embedder
from carpool.embedding.hashing import HashingEmbedder
from carpool.embedding.loader import fingerprint_of, load_embedder
from carpool.embedding.settings import EmbeddingSettings

__all__ = ["Embedder", "EmbeddingSettings", "HashingEmbedder", "fingerprint_of", "load_embedder"]
