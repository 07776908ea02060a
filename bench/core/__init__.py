"""What every benchmark shares."""
