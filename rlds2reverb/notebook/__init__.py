"""Episodes, plans, reports and servers as notebooks show them: pure functions from an object to HTML, one module per kind.

The HTML is small whatever the object holds, has no scripts, and asks nobody for anything. It takes its colours from the notebook.
"""
