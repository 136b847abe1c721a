"""Studies: the same recipe under several settings and seeds, scored and set side by side."""
