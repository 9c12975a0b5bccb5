"""Datasets of il-representations: its shards for webdataset, its dict format, and the benchmarks' own demonstrations.

Source of the layouts: il_representations/data/write_dataset.py, data/read_dataset.py and envs/*_envs.py.
"""
