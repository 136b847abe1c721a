"""Bitext: readers of its formats, cleaning and preparation, and the sentence pairs that training uses."""
