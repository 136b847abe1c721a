"""What every room stands on: errors, files that are whole or absent, recipes, progress, vectors, the version."""
