"""How does it tell what it is doing? One typed list of metrics, JSON logs, traces, and the three
HTTP pages of a process.

*Invariant:* metrics are passed in, labels have few values. *Invariant:* nothing here changes what a
service does with a record.
"""
