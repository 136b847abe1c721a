"""Readers of the files sentence pairs come in. A new format is one function and one line in `sources.READERS`."""
