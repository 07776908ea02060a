"""Dead letters: records that could not be used, written, read, replayed and dropped.

*Invariant:* a letter always fits its topic; otherwise it would block its partition. *Invariant:* a
letter is replayed once, unless a user asks for it again.
"""
