"""Sentences of several languages that can be searched by meaning: folders of texts, vectors and inverted lists."""
