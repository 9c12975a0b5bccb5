"""Minari's datasets, read and written without Minari and Gymnasium: `minari:ID[?OPTIONS]` and `minari:/path[?OPTIONS]`.

| module | content |
| --- | --- |
| `read` | stored columns as rows of RLDS; HDF5 of all of Minari's generations, Arrow and Parquet |
| `write` | episodes as HDF5 of Minari 0.5.4 |
| `storage` | the stored columns of an episode, by its number |
| `dataset` | ids, folders and metadata of datasets |
| `remote` | datasets that are not on this machine: names, lists, downloads |
| `listing` | which datasets there are |
| `spaces` | the JSON of Gymnasium's spaces, and their leaves |

Importing this package alone loads nothing.

Sources of the layout: minari/dataset/_storages, minari/serialization.py and minari/storage of Minari 0.5.4; minari/dataset/minari_storage.py
of 0.3.1, 0.4.2 and 0.4.3.
"""

LOSSES = {  # code -> what the format cannot hold
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
    "statistics": "the source says another sum, mean, deviation or extreme of the rewards than they have as written; the latter is written",
    "renumbered": "Minari numbers episodes from 0; the recorded number is lost",
}
