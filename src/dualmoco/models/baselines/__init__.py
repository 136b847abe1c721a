"""Encoders made by others: averaged word vectors, vectors made elsewhere, installed packages."""
