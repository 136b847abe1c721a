"""Readers of all formats of sentence pairs; a new format is one function and one line in `formats.py`."""
