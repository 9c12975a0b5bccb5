"""Datasets that tensorflow-datasets has prepared, read without it: where their files are, what is in their records."""
