"""The numbers that CaGR-RAG states in its text, by figure. Nothing is read off a picture."""

from __future__ import annotations

STATED: dict[int, tuple[str, ...]] = {
    1: (
        "queries 1 and 10 share more than 60 % (all-MiniLM-L6-v2, section 2.4.1)",
        "adjacent queries share little (section 2.4.1)",
    ),
    2: (
        "(b), nprobe 40: median 0.48 s; query 198 has a hit ratio of 42 % and takes 0.84 s "
        "(section 2.4.2)",
    ),
    4: (
        "CaGR-RAG stays over 60 %, close to 100 % on hotpotqa; EdgeRAG drops to 0 % at times on "
        "hotpotqa (section 4.2)",
    ),
    5: ("at 100 % hits CaGR-RAG stays below 200 ms, six times less than query 260 (section 4.2)",),
    6: (
        "p99 of EdgeRAG: 0.936 s nq, 1.5365 s hotpotqa, 1.287 s fever (section 4.3)",
        "p99 of CaGR-RAG: 0.4621 s nq, 0.7445 s hotpotqa, 0.7584 s fever; 51.55 % less on hotpotqa "
        "(section 4.3)",
        "averages: not stated",
    ),
    7: (
        "at a threshold of 90 % both are alike; at 10 % the prefetch cuts p99 by up to 3.1 times "
        "(section 4.4)",
    ),
}
