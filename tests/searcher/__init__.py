"""The search plane: store, cache, plan, scoring."""
