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
