"""The tests, one folder for each package; markers are in `pyproject.toml`."""
