"""Follows drafts, and lets the LLM server compute prefixes of prompts while searches run.

*Invariant:* a warm-up changes no answer. *Invariant:* a warm-up takes no slot that a prompt needs.
Not here, on purpose: which passages are warmed and when; `generator.plan.speculation` decides it.
"""
