"""`carpool bench search`: contestants behind one seam, each alone in a memory cgroup, judged in one
run.

`contestant.py` is the seam, `contestants/` who stands behind it, `measure.py` what happens in a
contestant's process, and `blocks.py` who runs when. The rules are written down in
docs/benchmarks.md.
"""
