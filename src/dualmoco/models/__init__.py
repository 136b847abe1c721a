"""A name in (folder, run, hub, package), a model out: sentences of a language to vectors, on any back-end."""
