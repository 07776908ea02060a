"""Dead letters: records that could not be used, written, read, replayed and dropped."""
