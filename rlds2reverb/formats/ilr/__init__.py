"""Datasets of il-representations: shards for webdataset, its dict format, and the benchmarks' own demonstrations.

| chapter | content |
| --- | --- |
| `keys` | keys of the data and the columns they become, options, notices |
| `archives`, `pickles`, `description` | tar archives, values in them, and the description at their start; read and written |
| `shards` | steps of archives as episodes |
| `arrays` | the dict format and the benchmarks' demonstrations as episodes |
| `minerl` | MineRL's recordings as episodes |
| `read` | the source `ilr:PATH[?OPTIONS]` |
| `destination`, `write`, `write_arrays` | the destination `ilr:PATH[?OPTIONS]`: its options, shards, and the dict format |

Shards are written as `write_frames` of il_representations/data/write_dataset.py makes them; webdataset and il-representations' own reader
read them. Importing this module loads no other.

Source of the layouts: il_representations/data/write_dataset.py, data/read_dataset.py and envs/*_envs.py.
"""

LOSSES = {  # code -> what the shards cannot hold
    "ends": "whether an episode ends in a terminal state or was truncated: `dones` marks both; every end is read as terminal by default",
    "discounts": "discounts other than 1, with 0 where the end is terminal; they are left out",
    "last_row": "values of the last row beside its observation",
    "metadata": "features of an episode that differ from the first episode's, or that il-representations does not have; they are left out",
    "kinds": "columns of other dtypes than booleans, numbers and single texts, or with free sizes; they are left out",
    "shape": "a reward of shape [1], which is written, and read as a number",
    "nests": "columns within columns, and texts as observations, in the dict format; they are left out",
    "names": "columns whose names have a dot, or one of the format's own meanings; they are left out",
}
