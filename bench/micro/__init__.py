"""The raw disk, measured beside a benchmark."""
