"""Fresh rows: those of documents that came after the base was saved, in memory."""
