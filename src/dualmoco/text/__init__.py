"""Characters, languages and text files: what every other folder needs to know about text."""
