"""Training: pairs and a recipe in, a run folder with the best model out. Start reading in `contrast.py`."""
