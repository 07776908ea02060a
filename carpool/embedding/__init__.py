"""How does text become a vector? The only loader of models, and their fingerprints.

This package is imported without those of the extra `services`; its modules need them.
"""

from carpool.embedding.embedder import Embedder
from carpool.embedding.settings import EmbeddingSettings

__all__ = ["Embedder", "EmbeddingSettings"]
