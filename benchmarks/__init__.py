"""Measurements against peers in the same run; results are in docs/results/."""
