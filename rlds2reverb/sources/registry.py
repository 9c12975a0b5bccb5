"""The formats that can be read. A new one is a module of its own and an entry here.

Help, messages and documentation follow from the entry. So do its tests, once it has data for them: tests/sources/cases.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlds2reverb.datasets import BUNDLED
from rlds2reverb.errors import SourceError
from rlds2reverb.extras import Lazily
from rlds2reverb.formats import Form, Format, Formats

if TYPE_CHECKING:
    from rlds2reverb.sources.base import Source

_READING_RLDS = "reading RLDS"

SOURCES: Formats[Source] = Formats(
    "source",
    SourceError,
    (
        Format(
            "tfds",
            Lazily("rlds2reverb.sources.tfds:open_tfds"),
            _READING_RLDS,
            forms=(
                Form(
                    "tfds:NAME[/CONFIG][:VERSION][@SPLIT][?OPTIONS]", "a dataset that TFDS has prepared on this machine"
                ),
                Form(
                    "tfds:/path/to/version_dir[@SPLIT][?OPTIONS]",
                    "a directory in TFDS format (dataset_info.json), registered or not",
                ),
            ),
            marks=("dataset_info.json",),
            place=Lazily("rlds2reverb.sources.tfds:directory_of"),
            page="datasets.md#which-dataset",
        ),
        Format(
            "bundled",
            Lazily("rlds2reverb.sources.bundled:open_bundled"),
            _READING_RLDS,
            forms=(Form("bundled:NAME[@SPLIT][?OPTIONS]", "a small dataset shipped with this package", BUNDLED),),
        ),
        Format(
            "d4rl",
            Lazily("rlds2reverb.sources.d4rl:open_d4rl"),
            "reading D4RL files",
            extra="hdf5",
            forms=(Form("d4rl:FILE[?OPTIONS]", "an HDF5 file of D4RL"),),
            marks=("*.hdf5",),
            page="formats/d4rl.md",
        ),
        Format(
            "minari",
            Lazily("rlds2reverb.sources.minari:open_minari"),
            "reading Minari's datasets",
            extra="hdf5",
            forms=(
                Form("minari:ID[?OPTIONS]", "a dataset of Minari on this machine, below `$MINARI_DATASETS_PATH`"),
                Form("minari:/path/to/dataset[?OPTIONS]", "a folder of Minari's, or the folder `data` in it"),
            ),
            marks=("data/main_data.hdf5", "data/metadata.json", "main_data.hdf5"),
            place=Lazily("rlds2reverb.sources.minari:folder_of"),
            page="formats/minari.md",
        ),
        Format(
            "robomimic",
            Lazily("rlds2reverb.sources.robomimic:open_robomimic"),
            "reading robomimic's files",
            extra="hdf5",
            forms=(Form("robomimic:FILE[?OPTIONS]", "an HDF5 file of robomimic, MimicGen or LIBERO"),),
            page="formats/robomimic.md",
        ),
        Format(
            "ilr",
            Lazily("rlds2reverb.readers.ilr.read:open_ilr"),
            "reading il-representations' datasets",
            forms=(
                Form("ilr:PATH[?OPTIONS]", "a dataset of il-representations: shards, dict or demonstrations"),
                Form("ilr:CONFIGS.yaml[?OPTIONS]", "the datasets of a list of dataset_configs, mixed"),
            ),
            takes=lambda thing: isinstance(thing, dict) and {"acts", "dones"} <= thing.keys(),
            objects="a dict with `obs`, `next_obs`, `acts` and `dones`",
            objects_are="il-representations' dict format",
            marks=("*.tar.zst", "*.pkl.gz"),
            page="formats/il_representations.md",
        ),
        Format(
            "lerobot",
            Lazily("rlds2reverb.readers.lerobot.read:open_lerobot"),
            "reading LeRobot datasets",
            extra="parquet",
            forms=(
                Form("lerobot:PATH[?OPTIONS]", "a folder with a LeRobot dataset, v2.0 to v3.0"),
                Form("lerobot:ORG/NAME[?OPTIONS]", "a LeRobot dataset that lerobot has downloaded or recorded"),
            ),
            marks=("meta/info.json",),
            place=Lazily("rlds2reverb.readers.lerobot.read:folder_of"),
            page="formats/lerobot.md",
        ),
        Format(
            "rllib",
            Lazily("rlds2reverb.readers.rllib.read:open_rllib"),
            "reading RLlib's files",
            forms=(
                Form(
                    "rllib:PATH[;PATH...][?OPTIONS]",
                    "RLlib's offline data: files, folders or patterns of JSON lines, zip or Parquet files",
                ),
            ),
            marks=("output-*.json", "*.json"),
            page="formats/rllib.md",
        ),
        Format(
            "ted",
            Lazily("rlds2reverb.readers.ted.read:open_ted"),
            "reading TorchRL's buffers",
            extra="hdf5",
            forms=(
                Form(
                    "ted:FOLDER[?OPTIONS]",
                    "a replay buffer that TorchRL dumped, or a TensorDict memory-mapped to a folder",
                ),
                Form("ted:FILE.h5[?OPTIONS]", "a replay buffer that TorchRL dumped as HDF5"),
            ),
            marks=("storage/storage_metadata.json", "checkpoint.h5", "*.h5"),
            page="formats/ted.md",
        ),
        Format(
            "npz",
            Lazily("rlds2reverb.sources.npz:open_npz"),
            "reading .npz files",
            forms=(
                Form("npz:FILE[?OPTIONS]", "a .npz file of NumPy with the rows of all episodes"),
                Form("npz:FOLDER[?OPTIONS], npz:FOLDER/*.npz", "a .npz file for each episode"),
            ),
            marks=("*.npz",),
            page="formats/npz.md",
        ),
        Format(
            "mix",
            Lazily("rlds2reverb.sources.mix:open_mix"),
            "reading a mix",
            forms=(Form("mix:SOURCE|SOURCE...[|?OPTIONS]", "several of these, mixed episode by episode"),),
            page="mixing.md",
        ),
        Format(
            "reverb",
            Lazily("rlds2reverb.stored.source:open_reverb"),
            "reading replay servers",
            forms=(
                Form("reverb:HOST:PORT/TABLE[?OPTIONS]", "a table of a running Reverb server"),
                Form("reverb:FOLDER[?OPTIONS]", "a checkpoint of Reverb or of `rlds2reverb serve`"),
            ),
            page="formats/reverb.md",
        ),
        Format(
            "episodes",
            Lazily("rlds2reverb.sources.episodes:EpisodeList"),
            "reading episodes",
            takes=lambda thing: isinstance(thing, (list, tuple)),
            objects="a list of `Episode`",
            objects_are="itself; needs no TensorFlow",
        ),
        Format(
            "rlds",
            Lazily("rlds2reverb.sources.rlds:RldsSource"),
            _READING_RLDS,
            extra="tfds",
            takes=lambda thing: hasattr(thing, "element_spec"),
            objects="an RLDS `tf.data.Dataset`",
            objects_are="episodes with a dataset `steps`, or with steps already batched to columns `[T, ...]`",
        ),
    ),
)
