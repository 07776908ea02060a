"""How does a person run it? The command `carpool`.

*Invariant:* output for programs (`--json`) goes to standard output alone; messages for people go to
standard error. *Invariant:* a child process never outlives `carpool up`. Not here, on purpose:
decisions of a service; imports of heavy packages before a command needs them.
"""
