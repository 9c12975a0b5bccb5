"""Datasets of rows, one after the other, in which flags or numbers say where an episode ends.

`columns` says what a column of rows is, `cutting` finds the ends, `recordings` makes episodes of both.
"""
