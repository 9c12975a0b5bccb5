"""The formats that can be read and written, by scheme: how a name such as `tfds:my_dataset` is written, what opens it, and which extra it needs.

A new format is a module and an entry here. Its contract tests run once it has data: tests/contract/source_cases.

Help, messages and documentation are made of these entries, so no module of a format is imported before it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from difflib import get_close_matches
from glob import has_magic
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from zipfile import BadZipFile

from rlds2reverb import hooks
from rlds2reverb.errors import ConfigError, Rlds2ReverbError, SourceError
from rlds2reverb.extras import Lazily, needing
from rlds2reverb.formats.options import escaped, is_url, parted, unescaped
from rlds2reverb.text import did_you_mean

if TYPE_CHECKING:
    from rlds2reverb.formats.destination import Destination
    from rlds2reverb.formats.source import Source


BUNDLED: tuple[str, ...] = ("cartpole", "half_cheetah")


def bundled_path(name: str) -> Path:
    """The version directory of a small dataset shipped with this package. Raises `ValueError` unless it is one of `BUNDLED`."""
    if name not in BUNDLED:
        raise ValueError(
            f'unknown bundled dataset: expected one of {", ".join(BUNDLED)}, got "{name}"{did_you_mean(name, BUNDLED)}'
        )
    return Path(__file__).parent / "datasets" / name / "1.0.0"


_LISTED_AT_ONCE = 16  # folders, which a bucket lists one by one
_MOST_DEEP = 6
_MOST_LOOKED = 16  # files in a folder, whose content may say what it is
_MOST_ABOVE = 4  # folders above a file of a dataset: LeRobot's videos lie deepest

Opened = TypeVar("Opened")


@dataclass(frozen=True)
class Form:
    """One way to write a name of a format.

    Attributes:
      written: with the scheme: "tfds:NAME[@SPLIT]".
      names: what it stands for, on one line; for help and documentation.
      choices: the names, where there are only a few.
    """

    written: str
    names: str
    choices: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.written}, one of {', '.join(self.choices)}" if self.choices else self.written

    @property
    def examples(self) -> tuple[str, ...]:
        """Every name where there are only a few, else how one is written."""
        scheme = self.written.partition(":")[0]
        return tuple(f"{scheme}:{choice}" for choice in self.choices) or (self.written,)


def _nothing(_: object) -> bool:
    return False


@dataclass(frozen=True)
class LibraryReader:
    """How a format's own library reads a dataset that is written.

    Attributes:
      package: as it is installed; its version is in messages.
      oldest: the first version that reads what is written.
      modules: what must be importable.
      function: yields the columns of every episode of a path: path -> all rows of the column, or all but the last.
    """

    package: str
    oldest: tuple[int, ...]
    modules: tuple[str, ...]
    function: Lazily


@dataclass(frozen=True)
class Format(Generic[Opened]):
    """One format.

    Attributes:
      scheme: what its names begin with; also what it is called among the formats.
      opener: opens the text behind "scheme:", or an object that `takes` accepts; as a rule `Lazily`.
      purpose: what its libraries are for: "reading RLDS".
      extra: the extra of this package that brings its libraries; None where the core has them.
      forms: how its names are written; () when it takes objects only.
      takes: whether a Python object is of this format; decides it without importing anything.
      objects: what these objects are, in Markdown: "a list of `Episode`"; "" when it takes names only.
      objects_are: what they stand for, on one line; for documentation.
      marks: what its files look like: patterns of a file's name, or of files below its folder. For guesses only.
      file_marks: the same, of files that are a dataset each, where a folder of them is none.
      recognises: whether a file that a pattern fits is of this format, by its content, where others share the extension; raises if it
        cannot say. As a rule `Lazily`.
      place: where the data of a name lie, from the text behind "scheme:"; None where that text is a path. As a rule `Lazily`.
      page: of the documentation, below docs/, perhaps with a heading: "formats/d4rl.md"; "" where there is none.
      losses: of a destination, code -> what it cannot hold.
      reader: of a destination, its own library; None where there is none.
    """

    scheme: str
    opener: Lazily | Callable[[Any], Opened]
    purpose: str
    extra: str | None = None
    forms: tuple[Form, ...] = ()
    takes: Callable[[object], bool] = _nothing
    objects: str = ""
    objects_are: str = ""
    marks: tuple[str, ...] = ()
    file_marks: tuple[str, ...] = ()
    recognises: Callable[[Path], bool] | None = None
    place: Callable[[str], Path] | None = None
    page: str = ""
    losses: Lazily | None = None
    reader: LibraryReader | None = None

    @property
    def syntax(self) -> str:
        """How its names are written."""
        return " or ".join(map(str, self.forms))

    @property
    def patterns(self) -> tuple[str, ...]:
        """Those of `marks` and `file_marks` that a file's name may fit."""
        return tuple(mark for mark in (*self.marks, *self.file_marks) if has_magic(mark))

    def holds(self, file: Path) -> bool | None:
        """Whether a file has a name and a layout of this format; None if its name fits, and its layout cannot be told."""
        if not any(map(file.match, self.patterns)):
            return False
        try:
            return self.recognises is None or self.recognises(file)
        except ModuleNotFoundError:
            return None
        except (Rlds2ReverbError, OSError, ValueError, RuntimeError, LookupError, BadZipFile):  # a damaged file
            return False

    def dataset_at(self, place: Path) -> Path | None:
        """The file or folder that a name of this format would have, where a path looks like it: itself, or the first file in it."""
        if not place.is_dir():
            return place if place.is_file() and self.holds(place) else None
        for mark in self.marks:
            files = place.glob(mark)
            if any(files) if not has_magic(mark) else any(map(self.holds, islice(files, _MOST_LOOKED))):
                return place
        files_in = [file for mark in self.file_marks for file in islice(place.glob(mark), _MOST_LOOKED)]
        return next((file for file in sorted(files_in) if self.holds(file)), None)

    def dataset_around(self, place: Path) -> Path | None:
        """The nearest folder above a path that looks like a dataset of this format."""
        marks = [mark for mark in self.marks if not has_magic(mark)]
        folders = islice(place.absolute().parents, _MOST_ABOVE)
        return next((folder for folder in folders if any((folder / mark).is_file() for mark in marks)), None)


@dataclass(frozen=True)
class Formats(Generic[Opened]):
    """All formats of one kind, in the order in which help and messages list them.

    Attributes:
      kind: what their names name: "source".
      error: what is raised when a name makes no sense, or a library is missing.
      known: the formats of this package.
      above: gives those of the layers above it.
    """

    kind: str
    error: type[Rlds2ReverbError]
    known: tuple[Format[Opened], ...]
    above: Callable[[], Iterable[Format[Opened]]] = tuple

    def __iter__(self) -> Iterator[Format[Opened]]:
        """Those that have names before those that take objects only."""
        return iter(sorted((*self.known, *self.above()), key=lambda known: not known.forms))

    @property
    def syntax(self) -> str:
        """What names of all of them begin with."""
        return f"SCHEME:NAME, where SCHEME is one of {', '.join(one.scheme for one in self if one.forms)}"

    @property
    def objects(self) -> tuple[str, ...]:
        """What is taken beside names, in plain text."""
        return tuple(one.objects.replace("`", "") for one in self if one.objects)

    def of_name(self, name: str) -> tuple[Format[Opened], str]:
        """The format of a name "scheme:...", and the text behind the scheme. Raises `self.error` for an unknown scheme."""
        found = self.named(name)
        if found is not None:
            return found, name.partition(":")[2]
        hint = "" if is_url(name) else self._meant(name)
        if is_url(name):
            hint = f"; write SCHEME:{name}, or list the datasets in it: rlds2reverb inspect {name}"
        raise self.error(f'{self.kind} "{name}": expected {self.syntax}{hint}')

    def named(self, name: str) -> Format[Opened] | None:
        """The format of a name "scheme:..."; None when no format has that scheme."""
        scheme = name.partition(":")[0]
        return next((one for one in self if one.forms and one.scheme == scheme), None)

    def taking(self, thing: object) -> Format[Opened] | None:
        """The format of a Python object; None when it is of none."""
        return next((one for one in self if one.takes(thing)), None)

    def open_with(self, one: Format[Opened], what: Any) -> Opened:
        """Opens the text behind a scheme, or an object, as this format.

        Raises:
          self.error: an extra is not installed; and what the format raises.
        """
        with nullcontext() if one.extra is None else needing(one.purpose, one.extra, self.error):
            opener: Callable[[Any], Opened] = one.opener.function() if isinstance(one.opener, Lazily) else one.opener
            return opener(what)

    def _meant(self, name: str) -> str:
        """What was probably meant, judged by the scheme or by what lies at the path, as the end of a sentence; "" if there is no guess."""
        scheme, colon, rest = name.partition(":")
        if colon:
            near = get_close_matches(scheme.lower(), [one.scheme for one in self if one.forms], 1)
            return _proposed(f"{near[0]}:{rest}") if near else ""
        bare, path = name.partition("@")[0], unescaped(parted(name)[0])
        owners = [one.scheme for one in self for form in one.forms if bare in form.choices]
        if owners:
            return _proposed(f"{owners[0]}:{name}")
        try:
            return self._meant_by_path(name, Path(path).expanduser())
        except (OSError, ValueError, RuntimeError):  # it cannot be looked at; RuntimeError: "~nobody"
            return ""

    def _meant_by_path(self, name: str, place: Path) -> str:
        if not place.exists():
            return ""
        for look in (Format.dataset_at, Format.dataset_around):
            for known in self:
                dataset = look(known, place)
                if dataset is not None:
                    return _proposed(f"{known.scheme}:{name if dataset == place else escaped(dataset)}")
        layouts = {known.scheme: known.holds(place) for known in self if any(map(place.match, known.patterns))}
        if not layouts:
            return ""
        *first, last = [f"{scheme}:" for scheme in layouts]
        readers = f"; a file of this name is read by {', '.join(first)}{' or ' if first else ''}{last}"
        return (
            readers
            if None in layouts.values()
            else f"{readers}, and this one has {'none of their layouts' if first else 'another layout'}"
        )

    def below(self, folder: Path) -> Iterator[str]:
        """The names of the datasets in a folder and below it, as far as their files tell; level by level, each sorted.

        Raises:
          OSError, StorageError: a folder cannot be listed.
        """
        from concurrent.futures import ThreadPoolExecutor

        level = [folder]
        with ThreadPoolExecutor(_LISTED_AT_ONCE) as pool:
            for _ in range(_MOST_DEEP):
                listed = list(pool.map(lambda one: sorted(one.iterdir()), level))
                found = list(pool.map(self._marked, level, listed))
                for names in found:
                    yield from names
                below = [path for names, paths in zip(found, listed) if not names for path in paths]
                level = [path for path, is_folder in zip(below, pool.map(Path.is_dir, below)) if is_folder]

    def _marked(self, folder: Path, listed: list[Path]) -> list[str]:
        """The name of a folder that is a dataset as a whole; else those of files in it that are."""
        there = {path.name for path in listed}
        for one in self:
            for mark in one.marks:
                if not has_magic(mark) and mark.split("/")[0] in there and (folder / mark).exists():
                    return [f"{one.scheme}:{escaped(folder)}"]
        return [f"{scheme}:{escaped(path)}" for path in listed if (scheme := self._scheme_of(path))]

    def _scheme_of(self, file: Path) -> str:
        """The format that a file is a dataset of; where its content cannot be told, the first whose name fits; "" for none."""
        layouts = {known.scheme: held for known in self if (held := known.holds(file)) is not False}
        return next((scheme for scheme, held in layouts.items() if held), next(iter(layouts), ""))

    def rows(self) -> list[tuple[str, str]]:
        """How each form of a name is written, and what it names."""
        return [(", ".join(form.examples), form.names) for one in self for form in one.forms]

    def table(self, verb: str = "reads") -> str:
        """All that is taken, as a table in Markdown; `verb` says what is done with it."""
        rows = [f"| written as | {verb} | extra | more |", "| --- | --- | --- | --- |"]
        for one in self:
            extra = f"`{one.extra}`" if one.extra else ""
            more = f"[{one.scheme}]({one.page})" if one.page else ""
            for form in one.forms:
                written = ", ".join(f"`{example}`" for example in form.examples).replace("|", r"\|")
                rows.append(f"| {written} | {form.names} | {extra} | {more} |")
            if one.objects:
                rows.append(f"| {one.objects} (Python) | {one.objects_are} | {extra} | {more} |")
        return "\n".join(rows)


def _proposed(name: str) -> str:
    return f'; did you mean "{name}"?'


_READING_RLDS = "reading RLDS"

SOURCES: Formats[Source] = Formats(
    "source",
    SourceError,
    (
        Format(
            "tfds",
            Lazily("rlds2reverb.formats.tfds.read:open_tfds"),
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
            place=Lazily("rlds2reverb.formats.tfds.read:directory_of"),
            page="datasets.md#which-dataset",
        ),
        Format(
            "bundled",
            Lazily("rlds2reverb.formats.tfds.read:open_bundled"),
            _READING_RLDS,
            forms=(Form("bundled:NAME[@SPLIT][?OPTIONS]", "a small dataset shipped with this package", BUNDLED),),
        ),
        Format(
            "d4rl",
            Lazily("rlds2reverb.formats.d4rl:open_d4rl"),
            "reading D4RL files",
            extra="hdf5",
            forms=(Form("d4rl:FILE[?OPTIONS]", "an HDF5 file of D4RL"),),
            file_marks=("*.hdf5", "*.h5"),
            recognises=Lazily("rlds2reverb.formats.layouts:is_d4rl"),
            page="formats/d4rl.md",
        ),
        Format(
            "minari",
            Lazily("rlds2reverb.formats.minari.read:open_minari"),
            "reading Minari's datasets",
            extra="hdf5",
            forms=(
                Form("minari:ID[?OPTIONS]", "a dataset of Minari on this machine, below `$MINARI_DATASETS_PATH`"),
                Form("minari:/path/to/dataset[?OPTIONS]", "a folder of Minari's, or the folder `data` in it"),
            ),
            marks=("data/main_data.hdf5", "data/metadata.json", "main_data.hdf5"),
            place=Lazily("rlds2reverb.formats.minari.read:folder_of"),
            page="formats/minari.md",
        ),
        Format(
            "robomimic",
            Lazily("rlds2reverb.formats.robomimic:open_robomimic"),
            "reading robomimic's files",
            extra="hdf5",
            forms=(Form("robomimic:FILE[?OPTIONS]", "an HDF5 file of robomimic, MimicGen, LIBERO or Isaac Lab"),),
            file_marks=("*.hdf5", "*.h5"),
            recognises=Lazily("rlds2reverb.formats.layouts:is_robomimic"),
            page="formats/robomimic.md",
        ),
        Format(
            "ilr",
            Lazily("rlds2reverb.formats.ilr.read:open_ilr"),
            "reading il-representations' datasets",
            forms=(
                Form("ilr:PATH[?OPTIONS]", "a dataset of il-representations: shards, dict or demonstrations"),
                Form("ilr:CONFIGS.yaml[?OPTIONS]", "the datasets of a list of dataset_configs, mixed"),
            ),
            takes=lambda thing: isinstance(thing, dict) and {"acts", "dones"} <= thing.keys(),
            objects="a dict with `obs`, `next_obs`, `acts` and `dones`",
            objects_are="il-representations' dict format",
            marks=("*.tar.zst", "*.pkl.gz", "*.npz"),
            recognises=Lazily("rlds2reverb.formats.layouts:is_ilr"),
            page="formats/il_representations.md",
        ),
        Format(
            "lerobot",
            Lazily("rlds2reverb.formats.lerobot.read:open_lerobot"),
            "reading LeRobot datasets",
            extra="parquet",
            forms=(
                Form("lerobot:PATH[?OPTIONS]", "a folder with a LeRobot dataset, v2.0 to v3.0"),
                Form("lerobot:ORG/NAME[?OPTIONS]", "a LeRobot dataset that lerobot has downloaded or recorded"),
            ),
            marks=("meta/info.json",),
            place=Lazily("rlds2reverb.formats.lerobot.read:folder_of"),
            page="formats/lerobot.md",
        ),
        Format(
            "rllib",
            Lazily("rlds2reverb.formats.rllib.read:open_rllib"),
            "reading RLlib's files",
            forms=(
                Form(
                    "rllib:PATH[;PATH...][?OPTIONS]",
                    "RLlib's offline data: files, folders or patterns of JSON lines, zip or Parquet files",
                ),
            ),
            marks=("output-*.json", "*.json", "*.parquet"),
            recognises=Lazily("rlds2reverb.formats.layouts:is_rllib"),
            page="formats/rllib.md",
        ),
        Format(
            "ted",
            Lazily("rlds2reverb.formats.ted.read:open_ted"),
            "reading TorchRL's buffers",
            extra="hdf5",
            forms=(
                Form(
                    "ted:FOLDER[?OPTIONS]",
                    "a replay buffer that TorchRL dumped, or a TensorDict memory-mapped to a folder",
                ),
                Form("ted:FILE.h5[?OPTIONS]", "a replay buffer that TorchRL dumped as HDF5"),
            ),
            marks=("storage/storage_metadata.json", "checkpoint.h5"),
            file_marks=("*.h5", "*.hdf5"),
            recognises=Lazily("rlds2reverb.formats.layouts:is_ted"),
            page="formats/ted.md",
        ),
        Format(
            "npz",
            Lazily("rlds2reverb.formats.npz:open_npz"),
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
            Lazily("rlds2reverb.formats.mix:open_mix"),
            "reading a mix",
            forms=(Form("mix:SOURCE|SOURCE...[|?OPTIONS]", "several of these, mixed episode by episode"),),
            page="mixing.md",
        ),
        Format(
            "episodes",
            Lazily("rlds2reverb.formats.lists:EpisodeList"),
            "reading episodes",
            takes=lambda thing: isinstance(thing, (list, tuple)),
            objects="a list of `Episode`",
            objects_are="itself; needs no TensorFlow",
        ),
        Format(
            "rlds",
            Lazily("rlds2reverb.formats.rlds:RldsSource"),
            _READING_RLDS,
            extra="tfds",
            takes=lambda thing: hasattr(thing, "element_spec"),
            objects="an RLDS `tf.data.Dataset`",
            objects_are="episodes with a dataset `steps`, or with steps already batched to columns `[T, ...]`",
        ),
    ),
    hooks.formats_from_above,
)


DESTINATIONS: Formats[Destination] = Formats(
    "destination",
    ConfigError,
    (
        Format(
            "tfds",
            Lazily("rlds2reverb.formats.tfds.write:open_tfds"),
            "writing TFDS files",
            forms=(
                Form(
                    "tfds:/data_dir/NAME[:VERSION][@SPLIT][?OPTIONS]", "a dataset that TFDS reads by name or directory"
                ),
            ),
            page="convert.md#tfds",
            losses=Lazily("rlds2reverb.formats.tfds:LOSSES"),
            reader=LibraryReader(
                "tensorflow-datasets",
                (4, 9),
                ("tensorflow", "tensorflow_datasets"),
                Lazily("rlds2reverb.formats.tfds.by_library:read_back"),
            ),
        ),
        Format(
            "minari",
            Lazily("rlds2reverb.formats.minari.write:open_minari"),
            "writing Minari's datasets",
            extra="hdf5",
            forms=(
                Form("minari:ID[?OPTIONS]", "a dataset that Minari loads, below `$MINARI_DATASETS_PATH`"),
                Form("minari:/path/to/dataset[?OPTIONS]", "a folder that becomes one"),
            ),
            page="formats/minari.md",
            losses=Lazily("rlds2reverb.formats.minari:LOSSES"),
            reader=LibraryReader(
                "minari", (0, 5, 4), ("minari",), Lazily("rlds2reverb.formats.minari.by_library:read_back")
            ),
        ),
        Format(
            "ted",
            Lazily("rlds2reverb.formats.ted.write:open_ted"),
            "writing TorchRL's buffers",
            extra="hdf5",
            forms=(
                Form("ted:FOLDER[?OPTIONS]", "a replay buffer that TorchRL loads"),
                Form("ted:FILE.h5[?OPTIONS]", "the storage of one, as HDF5"),
            ),
            page="formats/ted.md",
            losses=Lazily("rlds2reverb.formats.ted:LOSSES"),
            reader=LibraryReader(
                "torchrl", (0, 7), ("torchrl",), Lazily("rlds2reverb.formats.ted.by_library:read_back")
            ),
        ),
        Format(
            "ilr",
            Lazily("rlds2reverb.formats.ilr.write:open_ilr"),
            "writing shards of il-representations",
            forms=(
                Form("ilr:PATH[?OPTIONS]", "a folder with demos.tar.zst, or such an archive, for il-representations"),
            ),
            page="formats/il_representations.md",
            losses=Lazily("rlds2reverb.formats.ilr:LOSSES"),
            reader=LibraryReader(
                "webdataset", (0, 2), ("webdataset",), Lazily("rlds2reverb.formats.ilr.by_library:read_back")
            ),
        ),
        Format(
            "lerobot",
            Lazily("rlds2reverb.formats.lerobot.write:open_lerobot"),
            "writing LeRobot datasets",
            extra="parquet",
            forms=(Form("lerobot:PATH[?OPTIONS]", "a folder that LeRobot reads, in its version 3.0"),),
            page="formats/lerobot.md",
            losses=Lazily("rlds2reverb.formats.lerobot:LOSSES"),
            reader=LibraryReader(
                "lerobot", (0, 4), ("lerobot",), Lazily("rlds2reverb.formats.lerobot.by_library:read_back")
            ),
        ),
    ),
)
