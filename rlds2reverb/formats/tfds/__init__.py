"""TFDS datasets, read and written without TensorFlow: `read` opens one by name, `write` makes one; `files` knows its files, `example` its records.

`tfds.load` and `tfds.builder_from_directory` read what is written. Episodes keep their order (`disableShuffling`). Importing this loads nothing.
"""

LOSSES = {
    "text_of_free_sizes": "text columns with several free sizes, or with one that is not the first; they are left out",
    "empty_texts": "texts of a size 0, of which TensorFlow dies; they are left out",
    "dtype": "TFDS has no feature of this dtype; it is left out",
    "name_of_steps": "a feature of the episode whose name is `steps`, which RLDS needs; it is left out",
}
"""Code -> what TFDS' files cannot hold."""
