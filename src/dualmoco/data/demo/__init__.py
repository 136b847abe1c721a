"""The demo's own corpus: English-Chinese sentence patterns and their words."""
