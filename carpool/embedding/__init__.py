"""How does text become a vector? The only loader of models, and their fingerprints.

*Invariant:* rows are L2-normalised float32, so that an inner product is a cosine. *Invariant:* two
models with one fingerprint give comparable vectors; the index stores it, and a query embedded by
another model is refused. *Invariant:* torch is imported when a real model is loaded, never before,
and nothing is fetched over the network unless a setting allows it. Absent on purpose: rerankers,
remote embedding services, GPUs.
"""

from carpool.embedding.embedder import Embedder
from carpool.embedding.hashing import HashingEmbedder
from carpool.embedding.loader import fingerprint_of, load_embedder
from carpool.embedding.settings import EmbeddingSettings

__all__ = ["Embedder", "EmbeddingSettings", "HashingEmbedder", "fingerprint_of", "load_embedder"]
