"""The formats that can be read. A new one is a module of its own and an entry here.

Help, messages and documentation follow from the entry. So do its tests, once it has data for them: tests/sources/cases.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlds2reverb.datasets import BUNDLED
from rlds2reverb.errors import SourceError
from rlds2reverb.formats import Form, Format, Formats, Lazily

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
        ),
        Format(
            "ted",
            Lazily("rlds2reverb.sources.ted:open_ted"),
            "reading TorchRL's buffers",
            extra="hdf5",
            forms=(
                Form(
                    "ted:FOLDER[?OPTIONS]",
                    "a replay buffer that TorchRL dumped, or a TensorDict memory-mapped to a folder",
                ),
                Form("ted:FILE.h5[?OPTIONS]", "a replay buffer that TorchRL dumped as HDF5"),
            ),
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
