"""Minari's datasets: HDF5 of all its generations, Arrow and Parquet, read without Minari and Gymnasium.

| module | turns |
| --- | --- |
| `places` | an id or a path into a folder |
| `facts` | that folder's `metadata.json`, or the attributes of its main file, into what is known of the whole |
| `spaces` | the JSON of a Gymnasium space into its leaves |
| `in_hdf5`, `in_arrow` | an episode's number into its stored columns |
| `episodes` | stored columns into rows of RLDS |
| `recordings` | all of it into `Recordings` |

Sources of the layout: minari/dataset/_storages, minari/serialization.py and minari/storage of Minari 0.5.4; minari/dataset/minari_storage.py
of 0.3.1, 0.4.2 and 0.4.3.
"""


# Minari's datasets, written without Minari: `minari:ID[?OPTIONS]` and `minari:/path[?OPTIONS]`, HDF5 of Minari 0.5.4.
#
# Importing this loads nothing.

LOSSES = {
    "moved": "Minari reads only infos beside the five fields; the column is written among these",
    "dtype": "HDF5 or Gymnasium's spaces hold no values of this dtype or shape; left out",
    "reward_dtype": "rewards that are whole numbers are written as float64",
    "rewards": "rewards that are several per step, or no numbers; left out, and the rewards are 0",
    "name": "HDF5 has no such name; left out",
    "discount": "Minari has no discounts; another than 1, or 0 before a terminal end, is lost",
    "last_row": "the last row of an episode has no step in Minari: its action and reward are left out, and they are not 0",
    "terminal": "an episode of one row has no step that could be terminated",
    "unknown_end": "it is not known which episodes end in a terminal state: all are written as truncated",
    "text": "the text is no UTF-8, or has a NUL: such bytes are written as escapes",
    "metadata": "an attribute cannot hold it, and it is left out; or its size differs between episodes, and Minari alone reads it back",
    "renumbered": "Minari numbers episodes from 0; the recorded number is lost",
}
"""Code -> what the format cannot hold."""
