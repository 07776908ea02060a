"""Does it pay? Runs the real services on real questions and reports what they did, beside an exact
in-memory search.

*Invariant:* a figure comes from a run, and its JSON says of which machine, data and settings.
Absent on purpose: mocks of the services; what is measured are the processes that users run.
"""
