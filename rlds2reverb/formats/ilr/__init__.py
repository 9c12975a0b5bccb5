"""Shards of il-representations, written without webdataset: `ilr:PATH[?OPTIONS]`.

One archive, `demos.tar.zst`, as `write_frames` of il_representations/data/write_dataset.py makes it. webdataset and il-representations'
own reader read it.

Importing this loads nothing.
"""

LOSSES = {
    "ends": "whether an episode ends in a terminal state or was truncated: `dones` marks both; every end is read as terminal by default",
    "discounts": "discounts other than 1, with 0 where the end is terminal; they are left out",
    "last_row": "what the last row has beside its observation",
    "metadata": "features of an episode that differ from the first episode's, or that are none of il-representations'; they are left out",
    "kinds": "columns of other dtypes than booleans, numbers and single texts, or with free sizes; they are left out",
    "names": "columns whose names have a dot, or one of the format's own meanings; they are left out",
}
"""Code -> what the shards cannot hold."""


# Datasets of il-representations: its shards for webdataset, its dict format, and the benchmarks' own demonstrations.
#
# Source of the layouts: il_representations/data/write_dataset.py, data/read_dataset.py and envs/*_envs.py.
