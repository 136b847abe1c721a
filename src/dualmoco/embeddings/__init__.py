"""Text files and a model in, vectors on disk with a manifest out, resumable."""
