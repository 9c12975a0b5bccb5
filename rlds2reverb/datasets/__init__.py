"""Small recorded datasets that ship inside the package, found by name.

Turns a dataset name into the directory of its files (RLDS episodes in the TFDS on-disk format).
Uses the standard library only; the files are written by `examples/record_datasets.py`.
"""

import pathlib

__all__ = ["BUNDLED", "bundled_path"]

BUNDLED: tuple[str, ...] = ("cartpole", "half_cheetah")

_VERSION = "1.0.0"


def bundled_path(name: str) -> pathlib.Path:
    """Return the version directory of a bundled dataset, ready for `tfds.builder_from_directory`.

    Args:
        name: one of `BUNDLED`.

    Raises:
        ValueError: if `name` is not in `BUNDLED`.
    """
    if name not in BUNDLED:
        raise ValueError(f'unknown bundled dataset: expected one of {", ".join(BUNDLED)}, got "{name}"')
    return pathlib.Path(__file__).parents[1] / "formats" / "datasets" / name / _VERSION
