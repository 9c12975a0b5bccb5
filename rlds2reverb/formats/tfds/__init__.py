"""Datasets that tensorflow-datasets has prepared, read without it: where their files are, what is in their records."""


# TFDS directories, written without TensorFlow: `tfds:/data_dir/NAME[:VERSION][@SPLIT][?OPTIONS]`.
#
# `tfds.load` and `tfds.builder_from_directory` read them. Episodes stand in the files in the order in which they came
# (`disableShuffling`), so TFDS and this package read them in that order.
#
# Importing this loads nothing.

LOSSES = {
    "text_of_free_sizes": "text columns with several free sizes, or with one that is not the first; they are left out",
    "name_of_steps": "a feature of the episode whose name is `steps`, which RLDS needs; it is left out",
}
"""Code -> what TFDS' files cannot hold."""
