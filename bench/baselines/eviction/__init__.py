"""The eviction policy of a published system, which the searcher's is compared with."""
