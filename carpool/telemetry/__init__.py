"""Metrics in one typed list, JSON logs, and the three HTTP pages of a process.

*Invariant:* metrics are parameters; labels have few values. *Invariant:* nothing here changes what
a service does with a record.
"""
