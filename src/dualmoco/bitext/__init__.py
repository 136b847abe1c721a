"""Parallel sentences of two files: neighbours out of core, mining, scoring, paraphrases, and the files they become."""
