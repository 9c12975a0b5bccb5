"""Half-cheetah episodes in the files of other systems, written as these lay them out, and read back by the bare library.

Each format has a function that writes so many episodes into a folder and gives the source's name, and one that reads every value
with the library that the files are made for, as plain loops over arrays do. Both are held to the same number of steps.
"""

from benchmarks.format_files import hdf5, lerobot, memmap, minari, rllib, single
from benchmarks.format_files.base import TRANSITIONS, FormatFiles

__all__ = ["FORMATS", "TRANSITIONS", "FormatFiles"]

FORMATS = (*minari.FORMATS, *hdf5.FORMATS, *memmap.FORMATS, *lerobot.FORMATS, *rllib.FORMATS, *single.FORMATS)
