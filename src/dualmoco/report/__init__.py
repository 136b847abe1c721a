"""An evaluation for people: tables, Markdown, one HTML page."""
