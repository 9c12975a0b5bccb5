"""Datasets of il-representations as a source: `ilr:PATH[?OPTIONS]`, or its dict of arrays in memory.

| option | values | meaning |
| --- | --- | --- |
| `done_means` | `terminal` (default), `truncation` | what a step that is done leads to |
| `gaps` | `keep` (default), `split`, `refuse` | what becomes of a trajectory whose observations do not follow one another |
| `last_step` | `repeat` (default), `mark` | of Atari's and Procgen's demonstrations: what becomes of their last observation |
| `layout` | `webdataset`, `dict`, `atari`, `dm_control`, `magical`, `procgen` | how the files are laid out; by default what they hold says it |

A YAML file is a list of datasets that are mixed, il-representations' `dataset_configs`: `ilr:configs.yaml[?OPTIONS]`.

| option | values | meaning |
| --- | --- | --- |
| `root` | a folder | `data_root`, where the file tells none; by default the file's own folder |
| `benchmark`, `task` | names | `env_cfg` that the entries are merged into |
| `done_means`, `gaps` | as for shards | |
| `weights`, `seed`, `length` | as for a mix | equal weights and one pass by default; `length` is InterleavedDataset's nominal length, in episodes |

An entry has `type` ("demos" by default), `env_cfg` and `env_data`; the latter two are merged into the defaults, mappings within mappings.
The file may also be a mapping with `dataset_configs`, `env_cfg` and `env_data`, which has the defaults. The shards of an entry are looked
for in `<root>/data/processed/<type>/<benchmark_name>/<task_name>`, as il-representations does; then, without its `data/`, and in the
order that its documentation has. Source: `load_wds_datasets` and `get_data_dir` in il_representations/envs/auto.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlds2reverb import strict_yaml
from rlds2reverb.errors import ConfigError, SourceError
from rlds2reverb.files import check_regular
from rlds2reverb.formats import mix
from rlds2reverb.formats.ilr import arrays, keys, pickles
from rlds2reverb.formats.ilr.arrays import ArrayRecordings, ReadFile
from rlds2reverb.formats.ilr.keys import DONE_MEANS, GAPS, Options
from rlds2reverb.formats.ilr.shards import ShardRecordings
from rlds2reverb.formats.mix import COMMON, MixedSource
from rlds2reverb.formats.options import Parse, escaped, read_options, unescaped, words
from rlds2reverb.formats.recordings import RecordedSource, asked
from rlds2reverb.formats.rows import LAST_STEPS
from rlds2reverb.formats.source import Source

WEBDATASET, DICT = "webdataset", "dict"
_Native = Callable[[Any, str, str], list[arrays.Arrays]]
_NATIVE: dict[str, _Native] = {
    "atari": arrays.atari,
    "dm_control": arrays.dm_control,
    "magical": arrays.magical,
    "procgen": arrays.procgen,
}
LAYOUTS = (WEBDATASET, DICT, *_NATIVE)

SHARDS = (".tar.zst", ".tar.zstd", ".tar", ".zst", ".zstd")
_OTHERS = (".npz", ".pkl.gz", ".pickle.gz", ".pickle", ".pkl")
_PICKLES = (b"\x1f\x8b", b"\x80", b"(", b"}", b"]")
"""How pickles begin, compressed or not."""

Recordings = ShardRecordings | ArrayRecordings


_OPTIONS: dict[str, Parse] = {
    "done_means": words(*DONE_MEANS),
    "gaps": words(*GAPS),
    "last_step": words(*LAST_STEPS),
    "layout": words(*LAYOUTS),
}


def open_ilr(what: Any) -> Source:
    """Opens a dataset of il-representations by the text after "ilr:", or its arrays in memory.

    Raises:
      SourceError: no such file, it is damaged or none of il-representations', or an option makes no sense.
    """
    if not isinstance(what, str):
        return RecordedSource(in_memory(what))
    if (configs := CONFIGS.fullmatch(what)) is not None:
        return open_configs(Path(unescaped(configs["path"])).expanduser(), configs["options"] or "")
    wanted = asked("ilr", what, _OPTIONS)
    options = dict(wanted.options)
    layout = options.pop("layout", None)
    found = recordings(wanted.path, wanted.name, Options(**options), layout)
    if wanted.choice.needs_count and found.count is None:
        found = found.counted()
    return wanted.source_of(found)


def recordings(path: Path, name: str, options: Options, layout: str | None) -> Recordings:
    """What a file, a folder or a pattern holds.

    Args:
      path: of them.
      name: for people.
      options: see `Options`.
      layout: one of `LAYOUTS`; None for what the contents say.

    Raises:
      SourceError: there is no file, or it is of no such layout.
    """
    found = _files(path)
    start = pickles.start_of(found[0])
    is_npz = start.startswith(b"PK")
    if layout == WEBDATASET or (layout is None and not is_npz and not _is_pickle(found[0], start)):
        return ShardRecordings(found, name, options)
    parts = [_part(one, layout, options) for one in found]
    return ArrayRecordings(parts, name, options)


def in_memory(arrays: Mapping[str, Any]) -> ArrayRecordings:
    """The dict format in memory."""
    return ArrayRecordings([lambda: [arrays]], "a dict of il-representations", Options())


def _is_pickle(path: Path, start: bytes) -> bool:
    return start.startswith(_PICKLES) and (not path.name.endswith(SHARDS))


def _files(path: Path) -> list[Path]:
    """Files, sorted by name."""
    if path.is_dir():
        for endings in (SHARDS, _OTHERS):
            found = [one for one in path.iterdir() if one.name.endswith(endings) and not one.name.startswith(".")]
            if found:
                return sorted(found)
        raise SourceError(f"{path}: expected files *{', *'.join((*SHARDS, *_OTHERS))} in it")
    if path.exists():
        return [path]
    found = [one for one in path.parent.glob(path.name) if not one.is_dir()] if path.name else []
    if not found:
        raise SourceError(f"{path}: not found; expected a file, a folder, or a pattern that fits some files")
    return sorted(found)


def _part(path: Path, layout: str | None, options: Options) -> ReadFile:
    def read() -> Sequence[Mapping[str, Any]]:
        is_npz = pickles.start_of(path).startswith(b"PK")
        found = pickles.npz(path) if is_npz else pickles.unpickled(path, arrays.CLASSES)
        kind = layout or _told_by(found, is_npz)
        if kind == DICT:
            if not isinstance(found, Mapping):
                raise SourceError(f"{path}: expected a dictionary of arrays, found a {type(found).__name__}")
            return [found]
        if is_npz != (kind == "atari"):
            raise SourceError(f"{path}: layout={kind}: expected {'npz' if kind == 'atari' else 'a pickle'}")
        return _NATIVE[kind](found, path.name, options.last_step)

    return read


def _told_by(found: Any, is_npz: bool) -> str:
    """The layout, determined from the contents of a file."""
    if isinstance(found, Mapping) and any(map(keys.is_observation, found)):
        return "procgen" if all(isinstance(value, list) for value in found.values()) else DICT
    if is_npz:
        return "atari"
    return "magical" if isinstance(found, Mapping) else "dm_control"


_KEYS = ("type", "env_cfg", "env_data")
_CONFIG_OPTIONS: dict[str, Parse] = {
    "root": str,
    "benchmark": str,
    "task": str,
    "done_means": words(*DONE_MEANS),
    "gaps": words(*GAPS),
    **{key: parse for key, parse in mix.OPTIONS.items() if key != "columns"},
}
_SPACES = ("color_space", "observation_space", "action_space")
CONFIGS = re.compile(r"(?P<path>.*\.ya?ml)(\?(?P<options>.*))?", re.DOTALL)
"""A name of such a file. Its options may hold a folder, unlike those of other names."""

_NAME = re.compile(r"[\w.+ -]*\w[\w.+ -]*")


@dataclass(frozen=True)
class _Entry:
    """One dataset.

    Attributes:
      where: for messages.
      folders: where its shards may be, in the order of search.
      trajectories: how many are taken, from the first on; None for all.
    """

    where: str
    folders: tuple[Path, ...]
    trajectories: int | None


def open_configs(path: Path, options: str) -> MixedSource:
    """Opens the datasets of a file; see the module.

    Raises:
      SourceError: the file, a dataset or an option makes no sense; or the datasets' spaces differ.
    """
    people = f"ilr:{escaped(path)}"
    wanted = read_options(people, options, _CONFIG_OPTIONS)
    chosen = Options(**{key: wanted.pop(key) for key in ("done_means", "gaps") if key in wanted})
    defaults = {key: wanted.pop(key) for key in ("root", "benchmark", "task") if key in wanted}
    entries = entries_of(path, **defaults)
    recordings = [_recordings(entry, chosen) for entry in entries]
    _check_spaces([entry.where for entry in entries], [one.features for one in recordings])
    sources = [_source(entry, one) for entry, one in zip(entries, recordings)]
    try:
        return MixedSource(sources, columns=COMMON, **wanted)
    except ConfigError as error:
        raise SourceError(f'"{people}": {error}') from error


def entries_of(
    path: Path, root: str | None = None, benchmark: str | None = None, task: str | None = None
) -> list[_Entry]:
    """The entries of a file, merged with the defaults.

    Raises:
      SourceError: it is no such file.
    """
    try:
        if path.exists():
            check_regular(path)
        found = strict_yaml.read(path)
    except ConfigError as error:
        raise SourceError(str(error)) from error
    whole = found if isinstance(found, Mapping) else {"dataset_configs": found}
    configs = whole.get("dataset_configs")
    unknown = [str(key) for key in whole if key not in ("dataset_configs", "env_cfg", "env_data")]
    if unknown or not isinstance(configs, list) or not configs:
        raise SourceError(
            f"{path}: expected a list of datasets, or a mapping with dataset_configs, env_cfg and env_data; found "
            f"{', '.join(unknown) or 'no dataset'}"
        )
    given = {"benchmark_name": benchmark, "task_name": task}
    defaults = {
        "type": "demos",
        "env_cfg": {key: value for key, value in given.items() if value is not None},
        "env_data": {"data_root": str(path.parent) if root is None else root},
    }
    defaults = _merged(defaults, {key: whole.get(key) or {} for key in ("env_cfg", "env_data")}, f"{path}: ")
    return [
        _entry(f"{path}: dataset_configs[{at}]", config, defaults, path.parent) for at, config in enumerate(configs)
    ]


def _merged(defaults: Mapping[str, Any], config: Any, where: str) -> dict[str, Any]:
    """The defaults with the values of a config in their place; mappings are merged, not replaced.

    Raises:
      SourceError: something else stands where the defaults have a mapping.
    """
    if not isinstance(config, Mapping):
        raise SourceError(f"{where}expected a mapping, found {config!r}")
    made = dict(defaults)
    for key, value in config.items():
        before = made.get(key)
        made[key] = _merged(before, value, f"{where}{key}: ") if isinstance(before, Mapping) else value
    return made


def _entry(where: str, config: Any, defaults: Mapping[str, Any], folder: Path) -> _Entry:
    unknown = [key for key in config if key not in _KEYS] if isinstance(config, Mapping) else []
    if unknown:
        raise SourceError(f"{where}: unknown {', '.join(map(str, unknown))}; expected {', '.join(_KEYS)}")
    whole = _merged(defaults, {} if config is None else config, f"{where}: ")
    kind = _named(where, "type", whole["type"])
    benchmark, task = (
        _named(where, f"env_cfg.{key}", whole["env_cfg"].get(key)) for key in ("benchmark_name", "task_name")
    )
    root = whole["env_data"]["data_root"]
    if not isinstance(root, str):
        raise SourceError(f"{where}: env_data.data_root: expected a folder, found {root!r}")
    if whole["env_data"].get("wds_n_trans") is not None:
        raise SourceError(f"{where}: env_data.wds_n_trans: episodes are taken as a whole; use wds_n_trajs")
    trajectories = whole["env_data"].get("wds_n_trajs")
    if trajectories is not None and (not isinstance(trajectories, int) or trajectories < 1):
        raise SourceError(f"{where}: env_data.wds_n_trajs: expected at least 1, found {trajectories!r}")
    top = folder / Path(root).expanduser()
    parts = (
        (("data", "processed"), (benchmark, task)),
        (("processed",), (benchmark, task)),
        (("processed",), (task, benchmark)),
    )
    return _Entry(where, tuple(top.joinpath(*before, kind, *behind) for before, behind in parts), trajectories)


def _named(where: str, key: str, value: Any) -> str:
    """Checks that a value is a valid name of a single folder."""
    if not isinstance(value, str) or not _NAME.fullmatch(value) or value.startswith("."):
        hint = "; name it there, or by the options benchmark and task" if value is None else ""
        raise SourceError(f"{where}: {key}: expected a name, found {value!r}{hint}")
    return value


def _recordings(entry: _Entry, options: Options) -> ShardRecordings:
    for folder in entry.folders:
        found = sorted(one for one in folder.glob("*") if one.name.endswith(SHARDS)) if folder.is_dir() else []
        if found:
            return ShardRecordings(found, f"ilr:{escaped(folder)}", options)
    looked = ", ".join(map(str, entry.folders))
    raise SourceError(
        f"{entry.where}: no shards; looked for *{', *'.join(SHARDS)} in {looked}. Name the data_root with ?root=FOLDER"
    )


def _source(entry: _Entry, recordings: ShardRecordings) -> RecordedSource:
    if entry.trajectories is None:
        return RecordedSource(recordings)
    counted = recordings.counted()
    if (counted.count or 0) < entry.trajectories:
        raise SourceError(
            f"{entry.where}: env_data.wds_n_trajs: {entry.trajectories:,}, but there are {counted.count:,}"
        )
    return RecordedSource(counted, range(entry.trajectories))


def _check_spaces(names: Sequence[str], features: Sequence[Mapping[str, bytes]]) -> None:
    for name, found in zip(names[1:], features[1:]):
        for key in _SPACES:
            one, other = features[0].get(key, b"none").decode(), found.get(key, b"none").decode()
            if one != other:
                raise SourceError(
                    f"{name}: {key}: {other}, and that of {names[0]} is {one}; datasets that are mixed have equal spaces"
                )
