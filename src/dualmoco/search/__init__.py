"""Vectors in, nearest neighbours out, exact or approximate; an index of texts that is built, extended, queried."""
