"""What can the server compute while a search still runs? Drafts are followed, and prefixes warmed.

*Invariant:* a warm-up changes no answer. *Invariant:* a warm-up takes no place that a prompt needs.
Absent on purpose: when to warm what, which is decided in `generator.plan.speculation`.
"""
