"""Scores, pairs and similarities in, figures out: PNG, SVG or HTML, Chinese glyphs included."""
