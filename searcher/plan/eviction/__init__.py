"""Which cluster leaves memory? One eviction policy a file, all behind `CachePolicy`."""
