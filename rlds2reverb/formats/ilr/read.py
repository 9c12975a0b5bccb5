"""Datasets of il-representations as a source: `ilr:PATH[?OPTIONS]`, or its dict of arrays in memory.

| option | values | meaning |
| --- | --- | --- |
| `done_means` | `terminal` (default), `truncation` | the meaning of a step that is done |
| `gaps` | `keep` (default), `split`, `refuse` | treatment of a trajectory whose observations do not follow one another |
| `last_step` | `repeat` (default), `mark` | of Atari's and Procgen's demonstrations: treatment of the last observation |
| `layout` | `webdataset`, `dict`, `atari`, `dm_control`, `magical`, `procgen` | of the files; by default found from their contents |

A YAML file is a list of datasets that are mixed, il-representations' `dataset_configs`: `ilr:configs.yaml[?OPTIONS]`.

| option | values | meaning |
| --- | --- | --- |
| `root` | a folder | `data_root`, if the file has none; by default the file's own folder |
| `benchmark`, `task` | names | `env_cfg` that the entries are merged into |
| `done_means`, `gaps` | as for shards | |
| `weights`, `seed`, `length` | as for a mix | equal weights and one pass by default; `length` is InterleavedDataset's nominal length, in episodes |

An entry has `type` ("demos" by default), `env_cfg` and `env_data`; the latter two are merged into the defaults, mappings within mappings.
Keys that il-representations does not know are refused. The note `without_effect` names those that it knows and that choose no shards.
The file may also be a mapping with `dataset_configs`, and the defaults `env_cfg` and `env_data`. The shards of an entry are looked for in
`<root>/data/processed/<type>/<benchmark_name>/<task_name>`, as il-representations does; then without `data/`; then, too, in the order of
its documentation, `<task_name>/<benchmark_name>`. Source: `load_wds_datasets` and `get_data_dir` in il_representations/envs/auto.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rlds2reverb import strict_yaml
from rlds2reverb.errors import ConfigError, SourceError
from rlds2reverb.files import check_regular
from rlds2reverb.formats import mix
from rlds2reverb.formats.buckets import path_of
from rlds2reverb.formats.dataset_files import DatasetFiles
from rlds2reverb.formats.ilr import arrays, keys, pickles
from rlds2reverb.formats.ilr.arrays import ArrayRecordings, ReadFile
from rlds2reverb.formats.ilr.keys import DONE_MEANS, GAPS, Options
from rlds2reverb.formats.ilr.shards import ShardRecordings
from rlds2reverb.formats.mix import COMMON, MixedSource
from rlds2reverb.formats.options import Parse, escape_text, read_options, unescape_text, words
from rlds2reverb.formats.recordings import LINKS, RecordedSource, asked
from rlds2reverb.formats.rows import LAST_STEPS
from rlds2reverb.formats.source import Source
from rlds2reverb.text import did_you_mean, shortened

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
_PICKLES = (b"\x1f\x8b", b"\x80", b"(", b"}", b"]")  # the first bytes of pickles, compressed or not
_NPZ = b"PK"

_OPTIONS: dict[str, Parse] = {
    "done_means": words(*DONE_MEANS),
    "gaps": words(*GAPS),
    "last_step": words(*LAST_STEPS),
    "layout": words(*LAYOUTS),
}


def open_ilr(what: Any) -> Source:
    """Opens a dataset of il-representations by the text after "ilr:", or its arrays in memory.

    Raises:
      SourceError: there is no such file, it is damaged or not il-representations', or an option makes no sense.
    """
    if not isinstance(what, str):
        return RecordedSource(ArrayRecordings([lambda: [what]], "a dict of il-representations", Options()))
    if (configs := CONFIGS.fullmatch(what)) is not None:
        return open_configs(path_of(unescape_text(configs["path"])), configs["options"] or "")
    wanted = asked("ilr", what, _OPTIONS)
    options = dict(wanted.options)
    layout = options.pop("layout", None)
    reading = Options(**options)
    files = _files(wanted.path, wanted.files)
    start = pickles.start_of(files[0])
    is_pickle = start.startswith(_PICKLES) and not files[0].name.endswith(SHARDS)
    found: ShardRecordings | ArrayRecordings
    if layout == WEBDATASET or (layout is None and not start.startswith(_NPZ) and not is_pickle):
        found = ShardRecordings(files, wanted.name, reading)
    else:
        found = ArrayRecordings([_part(one, layout, reading) for one in files], wanted.name, reading)
    if wanted.choice.needs_count and found.count is None:
        found = found.counted()
    return wanted.source_of(found)


def _files(path: Path, files: DatasetFiles) -> list[Path]:
    """The files of a dataset, sorted and pinned."""
    if path.is_dir():
        path = files.pin(path, is_deep=False)
        for endings in (SHARDS, _OTHERS):
            found = [one for one in path.iterdir() if one.name.endswith(endings) and not one.name.startswith(".")]
            if found:
                files.restrict(found)
                return sorted(found)
        raise SourceError(f"{path}: expected files *{', *'.join((*SHARDS, *_OTHERS))} in it")
    if path.exists():
        return [files.pin(path)]
    found = [files.pin(one) for one in path.parent.glob(path.name) if not one.is_dir()] if path.name else []
    if not found:
        raise SourceError(f"{path}: not found; expected a file, a folder, or a pattern that fits some files")
    return sorted(found)


def _part(path: Path, layout: str | None, options: Options) -> ReadFile:
    def read() -> Sequence[Mapping[str, Any]]:
        is_npz = pickles.start_of(path).startswith(_NPZ)
        found = pickles.npz(path) if is_npz else pickles.unpickled(path, arrays.CLASSES)
        kind = layout
        if kind is None and isinstance(found, Mapping) and any(map(keys.is_observation, found)):
            kind = "procgen" if all(isinstance(value, list) for value in found.values()) else DICT
        elif kind is None:
            kind = "atari" if is_npz else "magical" if isinstance(found, Mapping) else "dm_control"
        if kind == DICT:
            if not isinstance(found, Mapping):
                raise SourceError(f"{path}: expected a dictionary of arrays, found a {type(found).__name__}")
            return [found]
        if is_npz != (kind == "atari"):
            raise SourceError(f"{path}: layout={kind}: expected {'npz' if kind == 'atari' else 'a pickle'}")
        return _NATIVE[kind](found, path.name, options.last_step)

    return read


_KEYS = ("type", "env_cfg", "env_data")
_WHOLE_KEYS = ("dataset_configs", "env_cfg", "env_data")
_SECTION_KEYS = {  # section -> its keys: whether one chooses data here, or is one of il-representations' that changes none of a shard's
    "env_cfg": {
        **dict.fromkeys(("benchmark_name", "task_name"), True),
        **dict.fromkeys(
            (
                "magical_preproc",
                "magical_remove_null_actions",
                "dm_control_frame_stack",
                "dm_control_full_env_names",
                "minecraft_max_env_steps",
                "procgen_frame_stack",
            ),
            False,
        ),
    },
    "env_data": {
        **dict.fromkeys(("data_root", "wds_n_trajs", "wds_n_trans"), True),
        **dict.fromkeys(
            ("magical_demo_dirs", "dm_control_demo_patterns", "atari_demo_paths", "procgen_demo_paths"), False
        ),
    },
}
_CONFIG_OPTIONS: dict[str, Parse] = {
    "root": str,
    "benchmark": str,
    "task": str,
    "done_means": words(*DONE_MEANS),
    "gaps": words(*GAPS),
    **{key: parse for key, parse in mix.OPTIONS.items() if key != "columns"},
    **LINKS,
}
_SPACES = ("color_space", "observation_space", "action_space")
CONFIGS = re.compile(r"(?P<path>.*\.ya?ml)(\?(?P<options>.*))?", re.DOTALL)
"""The name of a YAML file. Its options may hold a folder, unlike those of other names."""

_NAME = re.compile(r"[\w.+ -]*\w[\w.+ -]*")


@dataclass(frozen=True)
class _Entry:
    """One dataset: the possible folders of its shards, in the order of search, the number of trajectories to take, and keys that do nothing."""

    where: str
    folders: tuple[Path, ...]
    trajectories: int | None
    without_effect: tuple[str, ...]
    files: DatasetFiles

    def recordings(self, options: Options) -> ShardRecordings:
        for folder in self.folders:
            if not folder.is_dir():
                continue
            pinned = self.files.pin(folder, is_deep=False)
            found = sorted(one for one in pinned.glob("*") if one.name.endswith(SHARDS))
            self.files.restrict(found)
            if found:
                return ShardRecordings(
                    found, f"ilr:{escape_text(folder)}", replace(options, without_effect=self.without_effect)
                )
        looked = ", ".join(map(str, self.folders))
        raise SourceError(
            f"{self.where}: no shards; looked for *{', *'.join(SHARDS)} in {looked}. Name the data_root with ?root=FOLDER"
        )

    def source(self, recordings: ShardRecordings) -> RecordedSource:
        if self.trajectories is None:
            return RecordedSource(recordings, files=self.files)
        counted = recordings.counted()
        if (counted.count or 0) < self.trajectories:
            raise SourceError(
                f"{self.where}: env_data.wds_n_trajs: {self.trajectories:,}, but there are {counted.count:,}"
            )
        return RecordedSource(counted, range(self.trajectories), files=self.files)


def open_configs(path: Path, options: str) -> MixedSource:
    """Opens the datasets of a YAML file; see the module."""
    name = f"ilr:{escape_text(path)}"
    wanted = read_options(name, options, _CONFIG_OPTIONS)
    chosen = Options(**{key: wanted.pop(key) for key in ("done_means", "gaps") if key in wanted})
    defaults = {key: wanted.pop(key) for key in ("root", "benchmark", "task") if key in wanted}
    follow_links = wanted.pop("links", False)
    entries = [replace(entry, files=DatasetFiles(follow_links)) for entry in _entries_of(path, **defaults)]
    recordings = [entry.recordings(chosen) for entry in entries]
    spaces = [{key: one.features.get(key, b"none").decode() for key in _SPACES} for one in recordings]
    for entry, found in zip(entries, spaces):
        for key, space in found.items():
            if space != spaces[0][key]:
                raise SourceError(
                    f"{entry.where}: {key}: {space}, and that of {entries[0].where} is {spaces[0][key]}; "
                    "datasets that are mixed have equal spaces"
                )
    sources = [entry.source(one) for entry, one in zip(entries, recordings)]
    try:
        return MixedSource(sources, columns=COMMON, **wanted)
    except ConfigError as error:
        raise SourceError(f'"{name}": {error}') from error


def _entries_of(
    path: Path, root: str | None = None, benchmark: str | None = None, task: str | None = None
) -> list[_Entry]:
    try:
        if path.exists():
            check_regular(path)
        found = strict_yaml.read(path)
    except ConfigError as error:
        raise SourceError(str(error)) from error
    whole = found if isinstance(found, Mapping) else {"dataset_configs": found}
    configs = whole.get("dataset_configs")
    _check_keys(f"{path}: ", whole, _WHOLE_KEYS)
    if not isinstance(configs, list) or not configs:
        raise SourceError(
            f"{path}: expected a list of datasets, or a mapping with dataset_configs, env_cfg and env_data; found no dataset"
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
    """The defaults, replaced by the values of a config; mappings are merged, not replaced."""
    if not isinstance(config, Mapping):
        raise SourceError(f"{where}expected a mapping, found {config!r}")
    made = dict(defaults)
    for key, value in config.items():
        before = made.get(key)
        made[key] = _merged(before, value, f"{where}{key}: ") if isinstance(before, Mapping) else value
    return made


def _entry(where: str, config: Any, defaults: Mapping[str, Any], folder: Path) -> _Entry:
    if isinstance(config, Mapping):
        _check_keys(f"{where}: ", config, _KEYS)
    whole = _merged(defaults, {} if config is None else config, f"{where}: ")
    for section, known in _SECTION_KEYS.items():
        _check_keys(f"{where}: {section}: ", whole[section], known)
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
    top = folder / path_of(root)
    folders = (
        top / "data" / "processed" / kind / benchmark / task,
        top / "processed" / kind / benchmark / task,
        top / "processed" / kind / task / benchmark,
    )
    without_effect = [
        f"{section}.{key}" for section, known in _SECTION_KEYS.items() for key in whole[section] if not known[key]
    ]
    return _Entry(where, folders, trajectories, tuple(without_effect), DatasetFiles())


def _check_keys(where: str, config: Mapping[Any, Any], known: Collection[str]) -> None:
    """Raises `SourceError` for a key that il-representations does not know."""
    unknown = [str(key) for key in config if key not in known]
    if unknown:
        raise SourceError(
            f"{where}unknown {shortened(', '.join(unknown))}; expected {', '.join(known)}{did_you_mean(unknown[0], known)}"
        )


def _named(where: str, key: str, value: Any) -> str:
    """A value; raises `SourceError` unless it can be the name of a single folder."""
    if not isinstance(value, str) or not _NAME.fullmatch(value) or value.startswith("."):
        hint = "; name it there, or by the options benchmark and task" if value is None else ""
        raise SourceError(f"{where}: {key}: expected a name, found {value!r}{hint}")
    return value
