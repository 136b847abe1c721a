"""Neighbours of two texts in, parallel sentences out: margins, thresholds, one-to-one pairs, files."""
