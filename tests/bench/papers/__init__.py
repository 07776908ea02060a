"""The benches' own judgement: counts, promises, contestants, and small real runs."""
