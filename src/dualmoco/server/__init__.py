"""The studio: a local web app for search, mining review and alignment editing, and endpoints for other programs.

`app.py` puts it together, `run.py` serves it. Everything it keeps is in a project, a folder of plain files.
"""
