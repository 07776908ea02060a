"""How do files become documents? They are read, compared with the log, and put."""
