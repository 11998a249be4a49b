"""Trainings with one mistake put in: how many of them nanodoc finds, and how often it names the
line and the cause. `scripts/mutate` runs it; see `benchmarks/mutations/main.py`."""
