"""What became of the records that could not be used? Dead letters made, read, replayed and dropped.

*Invariant:* a letter always fits its topic: one that cannot be written would hold up its partition
for ever. *Invariant:* a letter is replayed once, unless somebody asks for it again.
"""
