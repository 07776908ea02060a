"""The index on disk: pages, segments, manifest, damage."""
