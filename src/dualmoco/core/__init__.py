"""What every other folder builds on: errors, atomic files, settings, progress, vectors, statistics, the version."""
