"""Pairs and a recipe in, a run folder with the best model out. START HERE: `contrast.py` is the algorithm."""
