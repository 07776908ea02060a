"""Building an index, also after kills."""
