"""How does a person run it? The command `carpool`: everything that the rest can do, said in words
and tables.

*Invariant:* output for programs (`--json`) goes to standard output alone; everything said to people
goes beside it. *Invariant:* a child process never outlives `carpool up`. Absent on purpose:
decisions of a service, and imports of heavy packages before a command needs them.
"""
