"""Text files, characters and languages: what every other folder needs to know about text."""
