"""How does it tell what it is doing? One typed list of metrics, JSON logs, and the three HTTP pages of a process.

*Invariant:* metrics are passed in, labels have few values. Absent on purpose: tracing (its headers are carried).
"""
