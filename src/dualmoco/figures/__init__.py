"""Figures of what a model does: parallel sentences, mined pairs, similarities, STS scores."""
