"""What happened to this query, and where? Spans of one trace across all topics and services.

*Invariant:* off, it costs a call that does nothing; on, it never waits: what cannot be exported in
time is dropped and counted. Absent on purpose: prompts, questions and answers, which traces do not
carry.
"""
