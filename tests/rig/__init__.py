"""What the tests of several rooms use: kills between steps, bad records, secure brokers."""
