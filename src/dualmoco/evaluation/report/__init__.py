"""An evaluation in, tables for people out: text, Markdown, one HTML page."""
