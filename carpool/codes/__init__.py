"""How are vectors compressed? Codes are scanned in memory; the stored rows give exact scores.

*Invariant:* codes choose candidates and nothing else: no score that leaves the searcher is computed
from a code. *Invariant:* only this package knows how codes are arranged. Absent on purpose: where
codes are stored (`carpool.disk`), and the reads of rows (`searcher.rows`).
"""
