"""Raw bitext in, clean and distinct pairs without test sentences out, on disk with a manifest of what was dropped."""
