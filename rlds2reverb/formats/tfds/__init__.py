"""TFDS datasets, read and written without TensorFlow.

| chapter | content |
| --- | --- |
| `info` | dataset_info.json, and the names of the files of a split |
| `splits` | the language of splits: which records of which files |
| `selection` | the order in which several files are read; the records of a dataset |
| `tfrecord`, `records` | the records of a file, in TFRecord, ArrayRecord or Parquet |
| `index` | where the records of a TFRecord file begin, kept for later readers |
| `missing` | files that are not there, and how to go on |
| `features`, `example`, `columns` | features.json; the lists of a `tf.train.Example`; both together: the columns of an episode |
| `encode` | columns of an episode as an Example |
| `read`, `by_tensorflow` | the source `tfds:NAME`, from the files or through TFDS |
| `write` | the destination `tfds:PATH` |

`tfds.load` and `tfds.builder_from_directory` read what is written. Episodes keep their order (`disableShuffling`). Importing this loads no other module of it.
"""

from __future__ import annotations

from pathlib import Path

from rlds2reverb.text import did_you_mean

BUNDLED: tuple[str, ...] = ("cartpole", "half_cheetah")


def bundled_path(name: str) -> Path:
    """The version directory of a small dataset shipped with this package. Raises `ValueError` unless it is one of `BUNDLED`."""
    if name not in BUNDLED:
        raise ValueError(
            f'unknown bundled dataset: expected one of {", ".join(BUNDLED)}, got "{name}"{did_you_mean(name, BUNDLED)}'
        )
    return Path(__file__).parents[1] / "datasets" / name / "1.0.0"


LOSSES = {
    "text_of_free_sizes": "text columns with several free sizes, or with one that is not the first; they are left out",
    "empty_texts": "texts of a size 0, of which TensorFlow dies; they are left out",
    "dtype": "TFDS has no feature of this dtype; it is left out",
    "name_of_steps": "a feature of the episode whose name is `steps`, which RLDS needs; it is left out",
}
"""Code -> what TFDS' files cannot hold."""
