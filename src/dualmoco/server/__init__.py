"""The studio: a local web app for search, mining review and alignment editing, and endpoints for other programs.

`app.py` assembles the app, and `serve.py` runs it. All its data are in a project, a folder of plain files.
"""
