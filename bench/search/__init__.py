"""`carpool bench search`: what each way of searching finds, costs and needs on one index.

Each contestant runs alone in a process, in a memory cgroup, from a cold start. *Invariant:* bytes
are the kernel's count. *Invariant:* recall is judged by an exact search of the same rows.
"""
