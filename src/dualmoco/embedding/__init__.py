"""Sentences of whole files as vectors on disk: back-ends that encode, stores that keep."""
