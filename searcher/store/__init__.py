"""How do bytes come from the disk? Batches of reads, by the kernel.

*Invariant:* a batch ends once, when the kernel has ended all of its reads; each read has filled its
memory, or has an error. *Invariant:* nothing here keeps the memory of a batch that has ended.
Absent on purpose: checksums (who wants the bytes verifies them).
"""
