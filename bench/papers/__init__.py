"""Figures of papers, for which their texts state numbers: `carpool bench paper NAME`.

A folder a paper. It prints what the paper states, the paper's algorithm run again, what Carpool
does, and an oracle. *Invariant:* algorithms that exist only to be compared live here.
"""
