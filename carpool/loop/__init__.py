"""The loop, its interface to a stage, work in flight, retries and commits."""
