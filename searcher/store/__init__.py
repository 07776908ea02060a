"""How do bytes come from the disk, and where are they in memory? Batches of reads, by the kernel.

One `Reader` is behind clusters, rows, codes and passages. *Invariant:* a batch has memory before
its first read starts, and is yielded once: when the kernel has ended its last read, or it hangs.
*Invariant:* its memory is free once it was taken and the kernel uses it no more. *Invariant:* what
is called good has the right checksums, where the file has any; there is an error for the rest.
"""
