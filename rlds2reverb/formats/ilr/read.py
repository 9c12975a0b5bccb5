"""Datasets of il-representations as a source: `ilr:PATH[?OPTIONS]`, or its dict of arrays in memory; docs/formats/il_representations.md has the options.

A YAML file is a list of datasets that are mixed, il-representations' `dataset_configs`: `ilr:configs.yaml[?OPTIONS]`. An entry has `type` ("demos" by
default), `env_cfg` and `env_data`; the latter two are merged into the defaults, mappings within mappings. Keys that il-representations does not
know are refused; the note `without_effect` names those that it knows and that choose no shards.
The file may also be a mapping with `dataset_configs`, and the defaults `env_cfg` and `env_data`. The shards of an entry are looked for in
`<root>/data/processed/<type>/<benchmark_name>/<task_name>`, as il-representations does; then without `data/`; then, too, in the order of
its documentation, `<task_name>/<benchmark_name>`. Source: `load_wds_datasets` and `get_data_dir` in il_representations/envs/auto.py.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rlds2reverb import strict_yaml
from rlds2reverb.errors import ConfigError, SourceError
from rlds2reverb.files import check_regular
from rlds2reverb.formats import mix
from rlds2reverb.formats.buckets import path_of
from rlds2reverb.formats.dataset_files import DatasetFiles
from rlds2reverb.formats.ilr import arrays, keys, minerl, pickles
from rlds2reverb.formats.ilr.arrays import ArrayRecordings, ReadFile
from rlds2reverb.formats.ilr.keys import DONE_MEANS, GAPS, IlrOptions
from rlds2reverb.formats.ilr.minerl import MineRlRecordings
from rlds2reverb.formats.ilr.shards import ShardRecordings
from rlds2reverb.formats.mix import COMMON, MixedSource
from rlds2reverb.formats.options import Parse, escape_text, is_url, read_options, unescape_text, words
from rlds2reverb.formats.recordings import LINKS, RecordedSource, parse_source_name
from rlds2reverb.formats.rows import LAST_STEPS
from rlds2reverb.formats.source import Source
from rlds2reverb.text import counted, did_you_mean, shortened

WEBDATASET, DICT, MINERL = "webdataset", "dict", "minerl"
_Native = Callable[[Any, str, str], list[arrays.Arrays]]
_NATIVE: dict[str, _Native] = {
    "atari": arrays.read_atari,
    "dm_control": arrays.read_dm_control,
    "magical": arrays.read_magical,
    "procgen": arrays.read_procgen,
}
LAYOUTS = (WEBDATASET, DICT, *_NATIVE, MINERL)

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
        return RecordedSource(ArrayRecordings([lambda: [what]], "a dict of il-representations", IlrOptions()))
    if (configs := CONFIGS.fullmatch(what)) is not None:
        return open_configs(path_of(unescape_text(configs["path"])), configs["options"] or "")
    request = parse_source_name("ilr", what, _OPTIONS)
    options = dict(request.options)
    layout = options.pop("layout", None)
    reading = IlrOptions(**options)
    if layout == MINERL or (layout is None and request.path.is_dir() and minerl.find_recordings(request.path)):
        folder = request.files.pin(request.path)
        folders = minerl.find_recordings(folder) if folder.is_dir() else []
        if not folders:
            raise SourceError(
                f"{folder}: expected a folder with {minerl.VIDEO}, {minerl.ARRAYS} and {minerl.ABOUT}, or a folder of such folders"
            )
        request.files.restrict(
            [path / file for path in folders for file in (minerl.VIDEO, minerl.ARRAYS, minerl.ABOUT)]
        )
        return request.make_source(MineRlRecordings(folders, request.name, reading))
    files = _find_files(request.path, request.files)
    start = pickles.start_of(files[0])
    is_pickle = start.startswith(_PICKLES) and not files[0].name.endswith(SHARDS)
    recordings: ShardRecordings | ArrayRecordings
    if layout == WEBDATASET or (layout is None and not start.startswith(_NPZ) and not is_pickle):
        recordings = ShardRecordings(files, request.name, reading)
    else:
        recordings = ArrayRecordings([_file_reader(file, layout, reading) for file in files], request.name, reading)
    if request.choice.needs_count and recordings.count is None:
        recordings.count_episodes()
    return request.make_source(recordings)


def _find_files(path: Path, files: DatasetFiles) -> list[Path]:
    """The files of a dataset, sorted and pinned."""
    if path.is_dir():
        path = files.pin(path, is_deep=False)
        for endings in (SHARDS, _OTHERS):
            data_files = [
                file for file in path.iterdir() if file.name.endswith(endings) and not file.name.startswith(".")
            ]
            if data_files:
                files.restrict(data_files)
                return sorted(data_files)
        raise SourceError(f"{path}: expected files *{', *'.join((*SHARDS, *_OTHERS))} in it")
    if path.exists():
        return [files.pin(path)]
    if _BRACES.search(path.name):
        return [files.pin(shard) for shard in _expand_braces(path)]
    matches = [files.pin(file) for file in path.parent.glob(path.name) if not file.is_dir()] if path.name else []
    if not matches:
        raise SourceError(
            f"{path}: not found; expected a file, a folder, a pattern that fits some files, or shards {{000..010}}"
        )
    return sorted(matches)


_BRACES = re.compile(r"\{(?:(?P<first>\d{1,9})\.\.(?P<last>\d{1,9})|(?P<names>[^{},]*(?:,[^{},]*)+))\}", re.ASCII)
_MOST_SHARDS = 100_000
_LOOKS_AT_ONCE = 16


def _expand_braces(path: Path) -> list[Path]:
    """The shards that a name stands for, as webdataset takes it: `{000..010}` for numbers in order, `{train,test}` for names, the first braces outermost.

    Raises:
      SourceError: one of them is not there, or they are more than `_MOST_SHARDS`.
    """
    names = [path.name]
    while any(map(_BRACES.search, names)):
        names = [expanded for name in names for expanded in _expand_first(name, path)]
        if len(names) > _MOST_SHARDS:
            raise SourceError(f"{path}: stands for more than {_MOST_SHARDS:,} shards")
    shards = [path.with_name(name) for name in names]
    # On a web server each is a request that waits.
    with ThreadPoolExecutor(_LOOKS_AT_ONCE if is_url(str(path)) else 1) as pool:
        are_there = list(pool.map(lambda shard: shard.exists(), shards))
    absent = [shard.name for shard, is_there in zip(shards, are_there) if not is_there]
    if absent:
        raise SourceError(
            f"{path}: {len(absent):,} of {counted(len(shards), 'shard')} not found: {shortened(', '.join(absent))}"
        )
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise SourceError(f"{path}: {shortened(', '.join(twice))} is named twice")
    return shards


def _expand_first(name: str, path: Path) -> list[str]:
    """The names by the first braces in a name."""
    match = _BRACES.search(name)
    if match is None:
        return [name]
    if match["names"] is not None:
        words = match["names"].split(",")
    else:
        first, last = int(match["first"]), int(match["last"])
        if abs(last - first) >= _MOST_SHARDS:
            raise SourceError(f"{path}: {match[0]} stands for more than {_MOST_SHARDS:,} shards")
        # As bash and webdataset write them: zeros in front of either number set the width of all.
        ends = (match["first"], match["last"])
        width = max(map(len, ends)) if any(end.startswith("0") and len(end) > 1 for end in ends) else 0
        step = 1 if first <= last else -1
        words = [f"{number:0{width}d}" for number in range(first, last + step, step)]
    return [f"{name[: match.start()]}{word}{name[match.end() :]}" for word in words]


def _file_reader(path: Path, layout: str | None, options: IlrOptions) -> ReadFile:
    def read() -> Sequence[Mapping[str, Any]]:
        is_npz = pickles.start_of(path).startswith(_NPZ)
        content = pickles.read_npz(path) if is_npz else pickles.unpickle_file(path, arrays.CLASSES)
        kind = layout
        if kind is None and isinstance(content, Mapping) and any(map(keys.is_observation, content)):
            kind = "procgen" if all(isinstance(value, list) for value in content.values()) else DICT
        elif kind is None:
            kind = "atari" if is_npz else "magical" if isinstance(content, Mapping) else "dm_control"
        if kind == DICT:
            if not isinstance(content, Mapping):
                raise SourceError(f"{path}: expected a dictionary of arrays, found a {type(content).__name__}")
            return [content]
        if is_npz != (kind == "atari"):
            raise SourceError(f"{path}: layout={kind}: expected {'npz' if kind == 'atari' else 'a pickle'}")
        return _NATIVE[kind](content, path.name, options.last_step)

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
_OTHER_NAMES = {"env_cfg": {"task": "task_name"}}
"""Section -> key -> what it is read as. il-representations' page on datasets writes `task` in an example; its code ignores that key, and would
read another task's data."""
_SPACES = ("color_space", "observation_space", "action_space")
CONFIGS = re.compile(r"(?P<path>.*\.ya?ml)(\?(?P<options>.*))?", re.DOTALL)
"""The name of a YAML file. Its options may hold a folder, unlike those of other names."""

_NAME = re.compile(r"[\w.+ -]*\w[\w.+ -]*")


@dataclass(frozen=True)
class _ConfigEntry:
    """One dataset of a configuration.

    Attributes:
      where: its place in the file, for messages.
      folders: where its shards may lie, in the order of search.
      trajectories: how many to take; None for all.
      without_effect: keys that choose no shards.
      renamed: keys that are read under another name -> that name.
      files: the files that are read.
    """

    where: str
    folders: tuple[Path, ...]
    trajectories: int | None
    without_effect: tuple[str, ...]
    renamed: Mapping[str, str]
    files: DatasetFiles

    def recordings(self, options: IlrOptions) -> ShardRecordings:
        for folder in self.folders:
            if not folder.is_dir():
                continue
            pinned = self.files.pin(folder, is_deep=False)
            shards = sorted(file for file in pinned.glob("*") if file.name.endswith(SHARDS))
            self.files.restrict(shards)
            if shards:
                own = replace(options, without_effect=self.without_effect, renamed=tuple(self.renamed.items()))
                return ShardRecordings(shards, f"ilr:{escape_text(folder)}", own)
        looked = ", ".join(map(str, self.folders))
        raise SourceError(
            f"{self.where}: no shards; looked for *{', *'.join(SHARDS)} in {looked}. Name the data_root with ?root=FOLDER"
        )

    def source(self, recordings: ShardRecordings) -> RecordedSource:
        if self.trajectories is None:
            return RecordedSource(recordings, files=self.files)
        recordings.count_episodes()
        if (recordings.count or 0) < self.trajectories:
            raise SourceError(
                f"{self.where}: env_data.wds_n_trajs: {self.trajectories:,}, but there are {recordings.count:,}"
            )
        return RecordedSource(recordings, range(self.trajectories), files=self.files)


def open_configs(path: Path, options: str) -> MixedSource:
    """Opens the datasets of a YAML file; see the module."""
    name = f"ilr:{escape_text(path)}"
    settings = read_options(name, options, _CONFIG_OPTIONS)
    chosen = IlrOptions(**{key: settings.pop(key) for key in ("done_means", "gaps") if key in settings})
    defaults = {key: settings.pop(key) for key in ("root", "benchmark", "task") if key in settings}
    follow_links = settings.pop("links", False)
    entries = [replace(entry, files=DatasetFiles(follow_links)) for entry in _read_entries(path, **defaults)]
    recordings = [entry.recordings(chosen) for entry in entries]
    spaces = [{key: shards.features.get(key, b"none").decode() for key in _SPACES} for shards in recordings]
    for entry, own in zip(entries, spaces):
        for key, space in own.items():
            if space != spaces[0][key]:
                raise SourceError(
                    f"{entry.where}: {key}: {space}, and that of {entries[0].where} is {spaces[0][key]}; "
                    "datasets that are mixed have equal spaces"
                )
    sources = [entry.source(shards) for entry, shards in zip(entries, recordings)]
    try:
        return MixedSource(sources, columns=COMMON, **settings)
    except ConfigError as error:
        raise SourceError(f'"{name}": {error}') from error


def _read_entries(
    path: Path, root: str | None = None, benchmark: str | None = None, task: str | None = None
) -> list[_ConfigEntry]:
    try:
        if path.exists():
            check_regular(path)
        content = strict_yaml.read(path)
    except ConfigError as error:
        raise SourceError(str(error)) from error
    whole = content if isinstance(content, Mapping) else {"dataset_configs": content}
    configs = whole.get("dataset_configs")
    _check_keys(f"{path}: ", whole, _WHOLE_KEYS)
    if not isinstance(configs, list) or not configs:
        raise SourceError(
            f"{path}: expected a list of datasets, or a mapping with dataset_configs, env_cfg and env_data; found no dataset"
        )
    names = {"benchmark_name": benchmark, "task_name": task}
    defaults = {
        "type": "demos",
        "env_cfg": {key: value for key, value in names.items() if value is not None},
        "env_data": {"data_root": str(path.parent) if root is None else root},
    }
    renamed: dict[str, str] = {}
    sections = _rename_keys(f"{path}: ", {key: whole.get(key) or {} for key in ("env_cfg", "env_data")}, renamed)
    defaults = _merge(defaults, sections, f"{path}: ")
    return [
        _parse_entry(f"{path}: dataset_configs[{at}]", config, defaults, path.parent, renamed)
        for at, config in enumerate(configs)
    ]


def _merge(defaults: Mapping[str, Any], config: Any, where: str) -> dict[str, Any]:
    """The defaults, replaced by the values of a config; mappings are merged, not replaced."""
    if not isinstance(config, Mapping):
        raise SourceError(f"{where}expected a mapping, found {config!r}")
    merged = dict(defaults)
    for key, value in config.items():
        before = merged.get(key)
        merged[key] = _merge(before, value, f"{where}{key}: ") if isinstance(before, Mapping) else value
    return merged


def _rename_keys(where: str, config: Mapping[str, Any], renamed: dict[str, str]) -> dict[str, Any]:
    """The config with the keys of `_OTHER_NAMES` under the names that they are read as.

    Args:
      renamed: gets each such key, as "section.key", and its name.

    Raises:
      SourceError: a key stands there under both names.
    """
    sections = dict(config)
    for section, names in _OTHER_NAMES.items():
        if not isinstance(values := config.get(section), Mapping):
            continue
        for key in names.keys() & values:
            if names[key] in values:
                raise SourceError(f"{where}{section}: {key} and {names[key]} are one setting; write {names[key]} alone")
            renamed[f"{section}.{key}"] = names[key]
        sections[section] = {names.get(key, key): value for key, value in values.items()}
    return sections


def _parse_entry(
    where: str, config: Any, defaults: Mapping[str, Any], folder: Path, renamed: Mapping[str, str]
) -> _ConfigEntry:
    renamed = dict(renamed)
    if isinstance(config, Mapping):
        _check_keys(f"{where}: ", config, _KEYS)
        config = _rename_keys(f"{where}: ", config, renamed)
    whole = _merge(defaults, {} if config is None else config, f"{where}: ")
    for section, section_keys in _SECTION_KEYS.items():
        _check_keys(f"{where}: {section}: ", whole[section], section_keys)
    kind = _check_name(where, "type", whole["type"])
    benchmark, task = (
        _check_name(where, f"env_cfg.{key}", whole["env_cfg"].get(key)) for key in ("benchmark_name", "task_name")
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
        f"{section}.{key}"
        for section, section_keys in _SECTION_KEYS.items()
        for key in whole[section]
        if not section_keys[key]
    ]
    return _ConfigEntry(where, folders, trajectories, tuple(without_effect), renamed, DatasetFiles())


def _check_keys(where: str, config: Mapping[Any, Any], expected_keys: Collection[str]) -> None:
    """Raises `SourceError` for a key that il-representations does not know."""
    unknown = [str(key) for key in config if key not in expected_keys]
    if unknown:
        raise SourceError(
            f"{where}unknown {shortened(', '.join(unknown))}; expected {', '.join(expected_keys)}{did_you_mean(unknown[0], expected_keys)}"
        )


def _check_name(where: str, key: str, value: Any) -> str:
    """A value; raises `SourceError` unless it can be the name of a single folder."""
    if not isinstance(value, str) or not _NAME.fullmatch(value) or value.startswith("."):
        hint = "; name it there, or by the options benchmark and task" if value is None else ""
        raise SourceError(f"{where}: {key}: expected a name, found {value!r}{hint}")
    return value
