"""Contestants that search: their cells, budgets, answers, and how a run is summed up."""
