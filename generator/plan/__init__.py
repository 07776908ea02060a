"""What does the generator decide? Which prompt is next, when to pause, what to ask, what was cited.

It also decides which server gets a prompt, how many requests a server gets at once, which equal
prompts share one answer, and which passages are warmed while a search runs.

*Invariant:* values and `now_us` in, decisions out: no clock, no I/O, no threads, no randomness.
*Invariant:* a query is waiting, in flight or gone. *Invariant:* a citation names a passage of
the prompt. Not here, on purpose: the requests themselves; `prompts_in_progress` sends them.
"""
