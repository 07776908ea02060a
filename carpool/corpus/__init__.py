"""The corpus as a log: what a fold of documents over a base has, and which base is current."""
