"""Does it pay? Runs the processes that users run, on real questions, and no mocks of them."""
