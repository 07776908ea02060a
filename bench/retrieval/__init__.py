"""`carpool bench search`: how each way of searching does on one index, and what it reads.

Each contestant runs alone in a process, in a memory cgroup, from a cold start.
*Invariant:* bytes are the kernel's count.
*Invariant:* ids of exact contestants are compared with those of FAISS IVF-Flat.
"""
