"""One family of readers for all files that pairs come in; a new format is one function and a line in `formats.py`."""
