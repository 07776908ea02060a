"""`carpool bench search`: what each way of searching costs at its own setting for a recall.

Each contestant runs alone in a process, in a memory cgroup, from a cold start. *Invariant:* bytes
are the kernel's count. *Invariant:* recall is judged by an exact search of the same rows, on
questions that chose no setting.
"""
