"""The formats that can be written. A new one is a module of its own and an entry here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlds2reverb.errors import ConfigError
from rlds2reverb.extras import Lazily
from rlds2reverb.formats import Form, Format, Formats

if TYPE_CHECKING:
    from rlds2reverb.destinations.base import Destination

DESTINATIONS: Formats[Destination] = Formats(
    "destination",
    ConfigError,
    (
        Format(
            "tfds",
            Lazily("rlds2reverb.destinations.tfds.destination:open_tfds"),
            "writing TFDS files",
            forms=(
                Form(
                    "tfds:/data_dir/NAME[:VERSION][@SPLIT][?OPTIONS]", "a dataset that TFDS reads by name or directory"
                ),
            ),
            page="convert.md#tfds",
        ),
        Format(
            "minari",
            Lazily("rlds2reverb.destinations.minari.destination:open_minari"),
            "writing Minari's datasets",
            extra="hdf5",
            forms=(
                Form("minari:ID[?OPTIONS]", "a dataset that Minari loads, below `$MINARI_DATASETS_PATH`"),
                Form("minari:/path/to/dataset[?OPTIONS]", "a folder that becomes one"),
            ),
            page="formats/minari.md",
        ),
        Format(
            "ted",
            Lazily("rlds2reverb.destinations.ted.write:open_ted"),
            "writing TorchRL's buffers",
            extra="hdf5",
            forms=(
                Form("ted:FOLDER[?OPTIONS]", "a replay buffer that TorchRL loads"),
                Form("ted:FILE.h5[?OPTIONS]", "the storage of one, as HDF5"),
            ),
            page="formats/ted.md",
        ),
        Format(
            "ilr",
            Lazily("rlds2reverb.destinations.ilr.write:open_ilr"),
            "writing shards of il-representations",
            forms=(
                Form("ilr:PATH[?OPTIONS]", "a folder with demos.tar.zst, or such an archive, for il-representations"),
            ),
            page="formats/il_representations.md",
        ),
        Format(
            "lerobot",
            Lazily("rlds2reverb.destinations.lerobot.write:open_lerobot"),
            "writing LeRobot datasets",
            extra="parquet",
            forms=(Form("lerobot:PATH[?OPTIONS]", "a folder that LeRobot reads, in its version 3.0"),),
            page="formats/lerobot.md",
        ),
    ),
)
