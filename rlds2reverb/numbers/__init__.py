"""The numbers of a dataset's columns: statistics in one pass, their files, and what normalises by them."""
