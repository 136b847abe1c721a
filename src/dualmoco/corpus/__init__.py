"""Reading sentence pairs and NLI examples from files."""
