"""The formats that can be read and written, by scheme: how a name such as `tfds:my_dataset` is written, what opens it, and which extra it needs.

A new format is a module and an entry in `BUILT_IN`. Its contract tests run once it has data: tests/contract/source_cases. A format of somebody
else's package is found by its entry point, see `plugins`; layers above hand down theirs by `rlds2reverb.hooks`.

Help, messages and documentation are made of these entries, so of a format only its package, which imports nothing, is imported before it is used: an
entry names functions of this module, each of which imports what it calls.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import partial
from glob import has_magic
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from zipfile import BadZipFile

from rlds2reverb import hooks
from rlds2reverb.errors import ConfigError, Rlds2ReverbError, SourceError
from rlds2reverb.extras import needing
from rlds2reverb.formats import ilr, lerobot, minari, plugins, ted, tfds
from rlds2reverb.formats.options import escape_text, is_mixture_file, is_url, split_options, unescape_text
from rlds2reverb.formats.tfds import BUNDLED

if TYPE_CHECKING:
    from rlds2reverb.episode import Array
    from rlds2reverb.formats.destination import Destination
    from rlds2reverb.formats.source import Source


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


@dataclass(frozen=True)
class Side(Generic[Opened]):
    """What reading and writing a format have in common.

    Attributes:
      open: opens the text behind "scheme:", or an object that `Reading.takes` accepts. Imports the format's module when it is called.
      forms: how its names are written; () when it takes objects only.
      page: of the documentation, where it is not that of the format.
    """

    open: Callable[[Any], Opened]
    forms: tuple[Form, ...] = ()
    page: str = ""


@dataclass(frozen=True)
class Reading(Side["Source"]):
    """How the datasets of a format are recognised and read.

    Attributes:
      takes: whether a Python object is of this format; decides it without importing anything.
      objects: what these objects are, in Markdown: "a list of `Episode`"; "" when it takes names only.
      objects_are: what they stand for, on one line; for documentation.
      marks: what its files look like: patterns of a file's name, or of files below its folder. For guesses only.
      file_marks: the same, of files that are a dataset each, where a folder of them is none.
      recognises: whether a file that a pattern fits is of this format, by its content, where others share the extension; raises if it
        cannot say.
      place: where the data of a name lie, from the text behind "scheme:"; None where that text is a path.
      has_last_step: whether `last_step` is an option of its own names, since its files hold no last observation, or its parts have it; `formats.last_step` adds it to
        the names of all other formats.
    """

    takes: Callable[[object], bool] = lambda _: False
    objects: str = ""
    objects_are: str = ""
    marks: tuple[str, ...] = ()
    file_marks: tuple[str, ...] = ()
    recognises: Callable[[Path], bool] | None = None
    place: Callable[[str], Path] | None = None
    has_last_step: bool = False

    @property
    def patterns(self) -> tuple[str, ...]:
        """The patterns among `marks` and `file_marks`, which a file's name may fit."""
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
class LibraryReader:
    """How a format's own library reads a dataset that is written.

    Attributes:
      package: as it is installed; its version is in messages.
      oldest: the first version that reads what is written.
      modules: what must be importable.
      read_back: yields the columns of every episode of a path: path -> all rows of the column, or all but the last. Another process calls it
        by its module and name.
    """

    package: str
    oldest: tuple[int, ...]
    modules: tuple[str, ...]
    read_back: Callable[[Path], Iterator[dict[str, Array]]]

    def __post_init__(self) -> None:
        if "<" in getattr(self.read_back, "__qualname__", "<"):
            raise TypeError(f"read_back of {self.package}: expected a function of a module, got {self.read_back!r}")


@dataclass(frozen=True)
class Writing(Side["Destination"]):
    """How a format is written.

    Attributes:
      losses: code -> what it cannot hold.
      library: its own library, which reads what was written; None where there is none.
    """

    losses: Mapping[str, str] = field(default_factory=dict)
    library: LibraryReader | None = None


@dataclass(frozen=True, eq=False)
class Format:
    """One format.

    Attributes:
      scheme: what its names begin with; also what it is called among the formats.
      title: its datasets, in a sentence: "reading RLDS" needs a library.
      reading, writing: None where it is not read, or not written.
      extra: the extra of this package that brings its libraries; None where the core has them.
      page: of the documentation, below docs/, perhaps with a heading: "formats/d4rl.md"; "" where there is none.
    """

    scheme: str
    title: str
    reading: Reading | None = None
    writing: Writing | None = None
    extra: str | None = None
    page: str = ""


def _guard_format(plugged: Format) -> Format:
    """A format of another package that is asked beside all others: its guesses may fail, and then count as no, with a warning."""
    if plugged.reading is None:
        return plugged
    takes, recognises = plugged.reading.takes, plugged.reading.recognises
    guarded = replace(
        plugged.reading,
        takes=_guard(plugged.scheme, takes),
        recognises=None if recognises is None else _guard(plugged.scheme, recognises),
    )
    return replace(plugged, reading=guarded)


def _guard(scheme: str, guess: Callable[[Any], bool]) -> Callable[[Any], bool]:
    def guarded(thing: Any) -> bool:
        try:
            return guess(thing)
        except Exception as error:  # whatever a foreign package's code raises; the other formats are still asked
            warnings.warn(
                f'format "{scheme}:" cannot tell what is its own: {type(error).__name__}: {error}', stacklevel=2
            )
            return False

    return guarded


def own_formats() -> Iterable[Format]:
    """The formats of this package: those of this layer, and those of the layers above it."""
    return (*BUILT_IN, *hooks.formats_from_above())


AnySide = TypeVar("AnySide", bound=Side[Any])


@dataclass(frozen=True)
class Formats(Generic[AnySide]):
    """All formats that can be read, or all that can be written, in the order in which help and messages list them.

    Attributes:
      kind: what their names name: "source".
      verb: what is done with them: "reading".
      error: what is raised when a name makes no sense, or a library is missing.
      side: what is known of reading or writing a format; None where that cannot be done.
      own: gives the formats of this package.
    """

    kind: str
    verb: str
    error: type[Rlds2ReverbError]
    side: Callable[[Format], AnySide | None]
    own: Callable[[], Iterable[Format]] = own_formats

    def own_sides(self) -> dict[Format, AnySide]:
        """What this package itself has; formats with names before those that take objects only."""
        sides = {entry: side for entry in self.own() if (side := self.side(entry)) is not None}
        return dict(sorted(sides.items(), key=lambda item: not item[1].forms))

    def all_sides(self) -> dict[Format, AnySide]:
        """With the formats of other packages, which are imported for it. One that cannot be used is left out with a warning."""
        plugged = map(_guard_format, plugins.load_all(Format, frozenset(entry.scheme for entry in self.own())))
        sides = {entry: side for entry in plugged if (side := self.side(entry)) is not None}
        return {**self.own_sides(), **sides}

    def __iter__(self) -> Iterator[Format]:
        return iter(self.all_sides())

    @property
    def syntax(self) -> str:
        """What names of all of them begin with."""
        own = [entry.scheme for entry, side in self.own_sides().items() if side.forms]
        return f"SCHEME:NAME, where SCHEME is one of {', '.join(dict.fromkeys((*own, *plugins.names())))}"

    def find(self, name: str) -> tuple[Format, AnySide] | None:
        """The format of a name "scheme:..."; None when no format has that scheme.

        Raises:
          self.error: another package has that format, and it cannot be used, or not for this.
        """
        scheme = name.partition(":")[0]
        for entry, side in self.own_sides().items():
            if entry.scheme == scheme and side.forms:
                return entry, side
        if any(entry.scheme == scheme for entry in self.own()) or scheme not in plugins.names():
            return None
        plugged = plugins.load(scheme, Format, self.error)
        plugged_side = self.side(plugged)
        if plugged_side is None or not plugged_side.forms:
            raise self.error(
                f'{self.kind} "{name}": {self.verb} {plugged.title} by a name is not among what its package can do'
            )
        return plugged, plugged_side

    def open(self, name: str) -> Any:
        """Opens what a name "scheme:..." names.

        Raises:
          self.error: an unknown scheme, or an extra that is not installed; and what the format raises.
        """
        entry = self.find(name)
        if entry is not None:
            return self.open_as(*entry, name.partition(":")[2])
        hint = "" if is_url(name) else self._meant(name)
        if is_url(name):
            hint = f"; write SCHEME:{name}, or list the datasets in it: rlds2reverb inspect {name}"
        raise self.error(f'{self.kind} "{name}": expected {self.syntax}{hint}')

    def open_as(self, entry: Format, side: Side[Any], what: Any) -> Any:
        """Opens the text behind a scheme, or an object, as this format. Raises as `open`."""
        purpose = f"{self.verb} {entry.title}"
        with nullcontext() if entry.extra is None else needing(purpose, entry.extra, self.error):
            return side.open(what)

    def _meant(self, name: str) -> str:
        """What was probably meant, judged by the scheme or by what lies at the path, as the end of a sentence; "" if there is no guess."""
        scheme, colon, text = name.partition(":")
        named = {entry.scheme: side for entry, side in self.own_sides().items() if side.forms}
        if colon:
            near = get_close_matches(scheme.lower(), [*named, *plugins.names()], 1)
            return _propose(f"{near[0]}:{text}") if near and near[0] != scheme else ""
        bare, path = name.partition("@")[0], unescape_text(split_options(name)[0])
        owners = [scheme for scheme, side in named.items() for form in side.forms if bare in form.choices]
        if owners:
            return _propose(f"{owners[0]}:{name}")
        try:
            return self._meant_by_path(name, Path(path).expanduser())
        except (OSError, ValueError, RuntimeError):  # it cannot be looked at; RuntimeError: "~nobody"
            return ""

    def _meant_by_path(self, name: str, place: Path) -> str:
        return ""  # a path that is to be written tells nothing

    def rows(self) -> list[tuple[str, str]]:
        """How each form of a name is written, and what it names."""
        return [(", ".join(form.examples), form.names) for side in self.all_sides().values() for form in side.forms]

    def table(self, verb: str = "reads") -> str:
        """All that this package itself takes, as a table in Markdown; `verb` says what is done with it."""
        rows = [f"| written as | {verb} | extra | more |", "| --- | --- | --- | --- |"]
        for entry, side in self.own_sides().items():
            extra = f"`{entry.extra}`" if entry.extra else ""
            page = side.page or entry.page
            more = f"[{entry.scheme}]({page})" if page else ""
            for form in side.forms:
                written = ", ".join(f"`{example}`" for example in form.examples).replace("|", r"\|")
                rows.append(f"| {written} | {form.names} | {extra} | {more} |")
            if isinstance(side, Reading) and side.objects:
                rows.append(f"| {side.objects} (Python) | {side.objects_are} | {extra} | {more} |")
        return "\n".join(rows)


@dataclass(frozen=True)
class SourceFormats(Formats[Reading]):
    """All formats that can be read; they may take Python objects, and be recognised by their files."""

    kind: str = "source"
    verb: str = "reading"
    error: type[Rlds2ReverbError] = SourceError
    side: Callable[[Format], Reading | None] = lambda known: known.reading

    @property
    def objects(self) -> tuple[str, ...]:
        """What is taken beside names, in plain text."""
        return tuple(side.objects.replace("`", "") for side in self.all_sides().values() if side.objects)

    def taking(self, thing: object, with_plugins: bool = False) -> tuple[Format, Reading] | None:
        """The format of a Python object; None when it is of none. Asks the formats of other packages only with `with_plugins`."""
        sides = self.all_sides() if with_plugins else self.own_sides()
        return next(((entry, side) for entry, side in sides.items() if side.takes(thing)), None)

    def below(self, folder: Path) -> Iterator[str]:
        """The names of the datasets in a folder and below it, as far as their files tell; level by level, each sorted.

        Raises:
          OSError, StorageError: a folder cannot be listed.
        """
        from concurrent.futures import ThreadPoolExecutor

        sides = {entry.scheme: side for entry, side in self.all_sides().items()}
        level = [folder]
        with ThreadPoolExecutor(_LISTED_AT_ONCE) as pool:
            for _ in range(_MOST_DEEP):
                listed = list(pool.map(lambda path: sorted(path.iterdir()), level))
                names_by_folder = list(pool.map(partial(_names_in, sides), level, listed))
                for names in names_by_folder:
                    yield from names
                below = [path for names, paths in zip(names_by_folder, listed) if not names for path in paths]
                level = [path for path, is_folder in zip(below, pool.map(Path.is_dir, below)) if is_folder]

    def _meant_by_path(self, name: str, place: Path) -> str:
        if not place.exists():
            return ""
        sides = {entry.scheme: side for entry, side in self.all_sides().items()}
        for look in (Reading.dataset_at, Reading.dataset_around):
            for scheme, side in sides.items():
                dataset = look(side, place)
                if dataset is not None:
                    return _propose(f"{scheme}:{name if dataset == place else escape_text(dataset)}")
        layouts = {scheme: side.holds(place) for scheme, side in sides.items() if any(map(place.match, side.patterns))}
        if not layouts:
            return _propose(f"mix:{escape_text(name)}") if is_mixture_file(f"mix:{name}") else ""
        *first, last = [f"{scheme}:" for scheme in layouts]
        readers = f"; a file of this name is read by {', '.join(first)}{' or ' if first else ''}{last}"
        if None in layouts.values():
            return readers
        return f"{readers}, and this one has {'none of their layouts' if first else 'another layout'}"


def _propose(name: str) -> str:
    return f'; did you mean "{name}"?'


def _names_in(sides: Mapping[str, Reading], folder: Path, listed: list[Path]) -> list[str]:
    """The name of a folder that is a dataset as a whole; else the names of the files in it that are datasets."""
    there = {path.name for path in listed}
    for scheme, side in sides.items():
        for mark in side.marks:
            if not has_magic(mark) and mark.split("/")[0] in there and (folder / mark).exists():
                return [f"{scheme}:{escape_text(folder)}"]
    return [f"{scheme}:{escape_text(path)}" for path in listed if (scheme := _scheme_of(sides, path))]


def _scheme_of(sides: Mapping[str, Reading], file: Path) -> str:
    """The format that a file is a dataset of; where its content cannot be told, the first whose name fits; "" for none."""
    layouts = {scheme: held for scheme, side in sides.items() if (held := side.holds(file)) is not False}
    return next((scheme for scheme, held in layouts.items() if held), next(iter(layouts), ""))


def _read_tfds(text: str) -> Source:
    from rlds2reverb.formats.tfds.read import open_tfds

    return open_tfds(text)


def _read_bundled(text: str) -> Source:
    from rlds2reverb.formats.tfds.read import open_bundled

    return open_bundled(text)


def _read_d4rl(text: str) -> Source:
    from rlds2reverb.formats.d4rl import open_d4rl

    return open_d4rl(text)


def _read_minari(text: str) -> Source:
    from rlds2reverb.formats.minari.read import open_minari

    return open_minari(text)


def _read_robomimic(text: str) -> Source:
    from rlds2reverb.formats.robomimic import open_robomimic

    return open_robomimic(text)


def _read_ilr(what: Any) -> Source:
    from rlds2reverb.formats.ilr.read import open_ilr

    return open_ilr(what)


def _read_lerobot(text: str) -> Source:
    from rlds2reverb.formats.lerobot.read import open_lerobot

    return open_lerobot(text)


def _read_rllib(text: str) -> Source:
    from rlds2reverb.formats.rllib.read import open_rllib

    return open_rllib(text)


def _read_ted(what: Any) -> Source:
    from rlds2reverb.formats.ted.read import open_ted, open_tensordicts

    return open_ted(what) if isinstance(what, str) else open_tensordicts(what)


def _takes_ted(thing: object) -> bool:
    if "tensordict" not in sys.modules:  # whoever has a TensorDict has imported it
        return False
    from rlds2reverb.formats.ted.memory import takes

    return takes(thing)


def _read_npz(text: str) -> Source:
    from rlds2reverb.formats.npz import open_npz

    return open_npz(text)


def _read_mix(text: str) -> Source:
    from rlds2reverb.formats.mix import open_mix

    return open_mix(text)


def _read_episodes(episodes: Any) -> Source:
    from rlds2reverb.formats.lists import EpisodeList

    return EpisodeList(episodes)


def _read_rlds(dataset: Any) -> Source:
    from rlds2reverb.formats.rlds import RldsSource

    return RldsSource(dataset)


def _place_tfds(text: str) -> Path:
    from rlds2reverb.formats.tfds.read import directory_of

    return directory_of(text)


def _place_minari(text: str) -> Path:
    from rlds2reverb.formats.minari.read import folder_of

    return folder_of(text)


def _place_lerobot(text: str) -> Path:
    from rlds2reverb.formats.lerobot.read import folder_of

    return folder_of(text)


def _write_tfds(text: str) -> Destination:
    from rlds2reverb.formats.tfds.write import open_tfds

    return open_tfds(text)


def _write_minari(text: str) -> Destination:
    from rlds2reverb.formats.minari.write import open_minari

    return open_minari(text)


def _write_ted(text: str) -> Destination:
    from rlds2reverb.formats.ted.write import open_ted

    return open_ted(text)


def _write_ilr(text: str) -> Destination:
    from rlds2reverb.formats.ilr.destination import open_ilr

    return open_ilr(text)


def _write_lerobot(text: str) -> Destination:
    from rlds2reverb.formats.lerobot.write import open_lerobot

    return open_lerobot(text)


def _read_back_tfds(path: Path) -> Iterator[dict[str, Array]]:
    from rlds2reverb.formats.tfds.by_library import read_back

    return read_back(path)


def _read_back_minari(path: Path) -> Iterator[dict[str, Array]]:
    from rlds2reverb.formats.minari.by_library import read_back

    return read_back(path)


def _read_back_ted(path: Path) -> Iterator[dict[str, Array]]:
    from rlds2reverb.formats.ted.by_library import read_back

    return read_back(path)


def _read_back_ilr(path: Path) -> Iterator[dict[str, Array]]:
    from rlds2reverb.formats.ilr.by_library import read_back

    return read_back(path)


def _read_back_lerobot(path: Path) -> Iterator[dict[str, Array]]:
    from rlds2reverb.formats.lerobot.by_library import read_back

    return read_back(path)


def _has_layout(scheme: str, file: Path) -> bool:
    from rlds2reverb.formats.layouts import LAYOUTS

    return LAYOUTS[scheme](file)


BUILT_IN: tuple[Format, ...] = (
    Format(
        "tfds",
        "RLDS",
        Reading(
            _read_tfds,
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
            place=_place_tfds,
            page="datasets.md#which-dataset",
        ),
        Writing(
            _write_tfds,
            forms=(
                Form(
                    "tfds:/data_dir/NAME[:VERSION][@SPLIT][?OPTIONS]", "a dataset that TFDS reads by name or directory"
                ),
            ),
            page="convert.md#tfds",
            losses=tfds.LOSSES,
            library=LibraryReader(
                "tensorflow-datasets", (4, 9), ("tensorflow", "tensorflow_datasets"), _read_back_tfds
            ),
        ),
    ),
    Format(
        "bundled",
        "RLDS",
        Reading(
            _read_bundled,
            forms=(Form("bundled:NAME[@SPLIT][?OPTIONS]", "a small dataset shipped with this package", BUNDLED),),
        ),
    ),
    Format(
        "d4rl",
        "D4RL files",
        Reading(
            _read_d4rl,
            forms=(Form("d4rl:FILE[?OPTIONS]", "an HDF5 file of D4RL"),),
            file_marks=("*.hdf5", "*.h5"),
            recognises=partial(_has_layout, "d4rl"),
            has_last_step=True,
        ),
        extra="hdf5",
        page="formats/d4rl.md",
    ),
    Format(
        "minari",
        "Minari's datasets",
        Reading(
            _read_minari,
            forms=(
                Form(
                    "minari:ID[?OPTIONS]", "a dataset of Minari below `$MINARI_DATASETS_PATH`, else at `$MINARI_REMOTE`"
                ),
                Form("minari:hf://ORG/ID[?OPTIONS]", "a dataset of Minari on the Hugging Face hub, by its full name"),
                Form("minari:/path/to/dataset[?OPTIONS]", "a folder of Minari's, or the folder `data` in it"),
            ),
            marks=("data/main_data.hdf5", "data/metadata.json", "main_data.hdf5"),
            place=_place_minari,
        ),
        Writing(
            _write_minari,
            forms=(
                Form("minari:ID[?OPTIONS]", "a dataset that Minari loads, below `$MINARI_DATASETS_PATH`"),
                Form("minari:/path/to/dataset[?OPTIONS]", "a folder that becomes one"),
            ),
            losses=minari.LOSSES,
            library=LibraryReader("minari", (0, 5, 4), ("minari",), _read_back_minari),
        ),
        extra="hdf5",
        page="formats/minari.md",
    ),
    Format(
        "robomimic",
        "robomimic's files",
        Reading(
            _read_robomimic,
            forms=(Form("robomimic:FILE[?OPTIONS]", "an HDF5 file of robomimic, MimicGen, LIBERO or Isaac Lab"),),
            file_marks=("*.hdf5", "*.h5"),
            recognises=partial(_has_layout, "robomimic"),
            has_last_step=True,
        ),
        extra="hdf5",
        page="formats/robomimic.md",
    ),
    Format(
        "ilr",
        "il-representations' datasets",
        Reading(
            _read_ilr,
            forms=(
                Form("ilr:PATH[?OPTIONS]", "a dataset of il-representations: shards, dict or demonstrations"),
                Form("ilr:CONFIGS.yaml[?OPTIONS]", "the datasets of a list of dataset_configs, mixed"),
            ),
            takes=lambda thing: isinstance(thing, dict) and {"acts", "dones"} <= thing.keys(),
            objects="a dict with `obs`, `next_obs`, `acts` and `dones`",
            objects_are="il-representations' dict format",
            marks=("*.tar.zst", "*.pkl.gz", "*.npz"),
            recognises=partial(_has_layout, "ilr"),
            has_last_step=True,
        ),
        Writing(
            _write_ilr,
            forms=(
                Form(
                    "ilr:PATH[?OPTIONS]",
                    "a folder of shards, an archive, or a dict (.npz, .pkl.gz), for il-representations",
                ),
            ),
            losses=ilr.LOSSES,
            library=LibraryReader("webdataset", (0, 2), ("webdataset",), _read_back_ilr),
        ),
        page="formats/il_representations.md",
    ),
    Format(
        "lerobot",
        "LeRobot datasets",
        Reading(
            _read_lerobot,
            forms=(
                Form("lerobot:PATH[?OPTIONS]", "a folder with a LeRobot dataset, v2.0 to v3.0"),
                Form("lerobot:ORG/NAME[?OPTIONS]", "a LeRobot dataset that lerobot has downloaded or recorded"),
            ),
            marks=("meta/info.json",),
            place=_place_lerobot,
            has_last_step=True,
        ),
        Writing(
            _write_lerobot,
            forms=(Form("lerobot:PATH[?OPTIONS]", "a folder that LeRobot reads, in its version 3.0"),),
            losses=lerobot.LOSSES,
            library=LibraryReader("lerobot", (0, 4), ("lerobot",), _read_back_lerobot),
        ),
        extra="parquet",
        page="formats/lerobot.md",
    ),
    Format(
        "rllib",
        "RLlib's files",
        Reading(
            _read_rllib,
            forms=(
                Form(
                    "rllib:PATH[;PATH...][?OPTIONS]",
                    "RLlib's offline data: files, folders or patterns of JSON lines, zip or Parquet files",
                ),
            ),
            marks=("output-*.json", "*.json", "*.parquet"),
            recognises=partial(_has_layout, "rllib"),
            has_last_step=True,
        ),
        page="formats/rllib.md",
    ),
    Format(
        "ted",
        "TorchRL's buffers",
        Reading(
            _read_ted,
            forms=(
                Form(
                    "ted:FOLDER[?OPTIONS]",
                    "a replay buffer that TorchRL dumped, or a TensorDict memory-mapped to a folder",
                ),
                Form("ted:FILE.h5[?OPTIONS]", "a replay buffer that TorchRL dumped as HDF5"),
                Form(
                    "ted:FILE.pt[?OPTIONS]",
                    "what `torch.save` wrote of a TensorDict, a buffer's state_dict or a dict of tensors",
                ),
            ),
            takes=_takes_ted,
            objects="a `TensorDict`, a list of them, or a `ReplayBuffer`",
            objects_are="TorchRL's steps or trajectories in memory",
            marks=("storage/storage_metadata.json", "checkpoint.h5"),
            file_marks=("*.h5", "*.hdf5", "*.pt", "*.pth"),
            recognises=partial(_has_layout, "ted"),
            has_last_step=True,
        ),
        Writing(
            _write_ted,
            forms=(
                Form("ted:FOLDER[?OPTIONS]", "a replay buffer that TorchRL loads"),
                Form("ted:FILE.h5[?OPTIONS]", "the storage of one, as HDF5"),
            ),
            losses=ted.LOSSES,
            library=LibraryReader("torchrl", (0, 7), ("torchrl",), _read_back_ted),
        ),
        extra="hdf5",
        page="formats/ted.md",
    ),
    Format(
        "npz",
        ".npz files",
        Reading(
            _read_npz,
            forms=(
                Form("npz:FILE[?OPTIONS]", "a .npz file of NumPy with the rows of all episodes"),
                Form("npz:FOLDER[?OPTIONS], npz:FOLDER/*.npz", "a .npz file for each episode"),
            ),
            marks=("*.npz",),
            has_last_step=True,
        ),
        page="formats/npz.md",
    ),
    Format(
        "mix",
        "a mix",
        Reading(
            _read_mix,
            forms=(
                Form("mix:SOURCE|SOURCE...[|?OPTIONS]", "several of these, mixed episode by episode"),
                Form(
                    "mix:FILE.yaml[?OPTIONS]", "the sets of a mixture file: weights, transforms, filters, normalisation"
                ),
            ),
            has_last_step=True,
        ),
        page="mixing.md",
    ),
    Format(
        "episodes",
        "episodes",
        Reading(
            _read_episodes,
            takes=lambda thing: isinstance(thing, (list, tuple)),
            objects="a list of `Episode`",
            objects_are="itself; needs no TensorFlow",
        ),
    ),
    Format(
        "rlds",
        "RLDS",
        Reading(
            _read_rlds,
            takes=lambda thing: hasattr(thing, "element_spec"),
            objects="an RLDS `tf.data.Dataset`",
            objects_are="episodes with a dataset `steps`, or with steps already batched to columns `[T, ...]`",
        ),
        extra="tfds",
    ),
)

SOURCES = SourceFormats()
DESTINATIONS: Formats[Writing] = Formats("destination", "writing", ConfigError, lambda known: known.writing)
