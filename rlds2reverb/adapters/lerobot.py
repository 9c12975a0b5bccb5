"""LeRobot's policies (ACT, diffusion policy, VLAs): batches as `policy.forward(batch)` takes them, of a table or a dataset on disk.

| item of the view `chunk` | in the batch |
| --- | --- |
| `observation/state` (or `observation`, where that is a column) | `observation.state` [B, (T,) D] float32 |
| images `observation/images/top` | `observation.images.top` [B, (T,) C, H, W] float32 in [0, 1]; uint8 with `return_uint8`; depths and floats unscaled |
| `action` | `action` [B, T, A] float32 |
| `action_is_pad`, `observation_is_pad` | `action_is_pad` [B, T] bool, and one mask for each observation |
| `extras/reward`, `extras/timestamp`, ... | `next.reward`, `timestamp`, ... |
| the text `extras/language_instruction`, or another (`task`) | `task`, a list of str |

An axis T is there where the config has delta indices for observations (diffusion policy), and is not otherwise (ACT).

`PolicyData` also is what `lerobot.policies.factory.make_policy` reads of a dataset (`ds_meta`): its features and statistics. Sources:
dataset_reader.py, datasets/factory.py, utils/feature_utils.py, policies/factory.py and processor/normalize_processor.py of lerobot 0.6.1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from types import NoneType
from typing import Any, NamedTuple

import numpy as np

from rlds2reverb.adapters.common import open_client
from rlds2reverb.episode import ACTION, METADATA, OBSERVATION, REWARD, Array
from rlds2reverb.errors import ConfigError, Rlds2ReverbError
from rlds2reverb.extras import needing
from rlds2reverb.images import FILE, FIRST, PLANE, Size, kind
from rlds2reverb.learner.batch import Batch, BatchIterator
from rlds2reverb.learner.options import SampleOptions, read_decode
from rlds2reverb.learner.packing import Packing
from rlds2reverb.numbers.forms import lerobot_document
from rlds2reverb.numbers.statistics import DatasetStatistics
from rlds2reverb.servers.tables import table_of
from rlds2reverb.specs import ArraySpec, ImageSpec, Nest, flatten, view_in
from rlds2reverb.text import did_you_mean
from rlds2reverb.views import ViewLike, view_from
from rlds2reverb.views.base import EXTRAS, Wanted, spell_view
from rlds2reverb.views.chunk import Chunk

with needing("the adapter for LeRobot's policies", "lerobot", ModuleNotFoundError):
    from rlds2reverb.adapters.torch import LocalDataset, MixDataset, TableDataset, check_map, tensor_of
with needing("the adapter for LeRobot's policies", "lerobot", ModuleNotFoundError):
    from lerobot.configs.types import FeatureType, PolicyFeature

STATE, ENVIRONMENT_STATE, NEXT_REWARD, TASK = (
    "observation.state",
    "observation.environment_state",
    "next.reward",
    "task",
)
IS_PAD = "_is_pad"

_TASKS = ("language_instruction", "task", "natural_language_instruction", "instruction", "language")
"""Last parts of paths of texts that are taken for the task, the first that there is."""

_IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
"""Per channel. Source: `IMAGENET_STATS` of lerobot.utils.constants."""

_NEEDED = {
    "IDENTITY": (),
    "MEAN_STD": ("mean", "std"),
    "MIN_MAX": ("min", "max"),
    "QUANTILES": ("q01", "q99"),
    "QUANTILE10": ("q10", "q90"),
}
"""By normalisation mode, the statistics that LeRobot's processors read. They leave a feature without any as it is, silently."""


def policy_view(config: Any, extras: Wanted = ()) -> Chunk:
    """The view whose items a policy trains on: its delta indices as windows, its `drop_n_last_frames` as `skip_last`.

    Chunks that reach over the end of an episode are padded, as in LeRobot, however short it is (`short="pad"`). For other options change it:
    `dataclasses.replace(policy_view(config), relative="first")`.

    Args:
      config: of a policy of LeRobot, such as `ACTConfig(chunk_size=16, n_action_steps=16)`.
      extras: further columns, such as "language_instruction" for the task; see `docs/views/extras.md`.

    Raises:
      ConfigError: it is no such config, or the policy wants windows of rewards.
    """
    observations, actions, rewards = (_indices_of(config, name) for name in (OBSERVATION, ACTION, REWARD))
    if rewards is not None:
        raise ConfigError(
            f"{_name_of_policy(config)}: it wants rewards at {rewards}; chunks have windows of observations and actions, so this policy "
            "cannot be trained on them"
        )
    return Chunk(
        history=observations,
        horizon=actions,
        skip_last=getattr(config, "drop_n_last_frames", None) or 0,
        short="pad",
        extras=extras,
    )


class PolicyData:
    """A table or a dataset as a policy of LeRobot takes it.

    Args:
      config: of the policy. Its delta indices and normalisation count, and its `input_features` where it has any: then only those are in
        the batches. `make_policy(config, ds_meta=data)` fills in empty ones.
      items: a `LocalDataset`, `TableDataset` or `MixDataset` without a map, with the view `policy_view(config)`; or open batches, of
        `rlds2reverb.local` or `Client.sample`. A `TableDataset` is looked up in its server now: workers of a loader must then be
        started by "forkserver" or "spawn".
      statistics: `rlds2reverb.statistics(...)`, or a file of any of its forms; None where the policy normalises nothing.
      names: LeRobot's name -> path of the column, where it is not the path with dots: {"observation.state": "observation/proprio"}.
      task: path of the text in the items that says the task; "" for the usual ones.
      imagenet: whether images are normalised by mean and std of ImageNet, as LeRobot's training does by default; else by `statistics`, which
        then need `images=True`.
      return_uint8: whether images stay uint8, a quarter of the bytes between processes; divide by 255 on the device then.
      map: called with every batch, in the worker: augmentation of images [B, (T,) C, H, W].

    Attributes:
      features: name -> dtype, shape and names of its axes, as info.json of LeRobot's datasets has them.
      stats: name -> statistic -> array, as LeRobot's processors take them.
      dataset: the `items` with batches as the policy takes them, for `DataLoader(data.dataset, batch_size=None, num_workers=n)`; None of open
        batches.

    Raises:
      ConfigError: the items lack what the policy wants, their windows are others than those of the config, or statistics are missing.
      Rlds2ReverbError: as `local` and `connect`, where a dataset or a server is opened.
    """

    def __init__(
        self,
        config: Any,
        items: LocalDataset | TableDataset | MixDataset | BatchIterator,
        statistics: DatasetStatistics | str | Path | None = None,
        names: Mapping[str, str] | None = None,
        task: str = "",
        imagenet: bool = True,
        return_uint8: bool = False,
        map: Callable[[dict[str, Any]], Any] | None = None,  # noqa: A002  # as of `TableDataset`
    ) -> None:
        where = _name_of_policy(config)
        parts = []
        for signature, decode, view in _open_parts(items):
            leaves = flatten(signature)
            _check_windows(config, leaves, view or view_in(signature))
            columns = _choose_columns(where, config, leaves, read_decode(decode), {} if names is None else names)
            parts.append((leaves, columns))
        leaves, columns = parts[0]  # batches of the others are held against it
        self._conversion = _Conversion(
            where,
            tuple(columns),
            tuple(_choose_masks(columns, leaves)),
            tuple(_choose_extras(leaves)),
            _choose_task(where, leaves, task),
            return_uint8,
            check_map("PolicyData", map),
        )
        self.features: dict[str, dict[str, Any]] = {column.name: _feature_of(column) for column in columns}
        self._types = {column.name: _type_of(column) for column in columns}
        _check_shapes(where, config, self.input_features, self.output_features)
        self.stats = _choose_stats(where, config, columns, self._types, statistics, imagenet)
        self._items = items
        self.dataset: Any = None
        if not isinstance(items, BatchIterator):
            self.dataset = copy(items)
            self.dataset.map = self._conversion

    @property
    def input_features(self) -> dict[str, PolicyFeature]:
        """For `config.input_features`, where no `make_policy` sets it. Images have the shape (channels, height, width)."""
        return {name: feature for name, feature in self._policy_features() if name != ACTION}

    @property
    def output_features(self) -> dict[str, PolicyFeature]:
        """For `config.output_features`."""
        return {name: feature for name, feature in self._policy_features() if name == ACTION}

    def __call__(self, batch: Batch) -> Any:
        """A batch of the items, of numpy arrays or of tensors, as the policy takes it.

        Raises:
          ConfigError: it is a batch of other items.
        """
        return self._conversion(batch)

    def __iter__(self) -> Iterator[Any]:
        """The batches, made in this process."""
        if self.dataset is not None:
            yield from self.dataset
            return
        for batch in self._items:
            yield self._conversion(batch)

    def _policy_features(self) -> Iterator[tuple[str, PolicyFeature]]:
        for column in self._conversion.columns:
            yield column.name, PolicyFeature(self._types[column.name], column.policy_shape)


class _Column(NamedTuple):
    """A column of the items, without the axis of its window."""

    name: str
    path: str
    shape: tuple[int, ...]  # of images: height, width, channels
    kind: str  # as `images.kind`; "" of numbers
    dtype: np.dtype[Any]
    has_window: bool

    @property
    def policy_shape(self) -> tuple[int, ...]:
        return (self.shape[2], *self.shape[:2]) if self.kind else self.shape

    @property
    def is_scaled(self) -> bool:
        """Whether it holds 256 levels, which become numbers from 0 to 1."""
        return bool(self.kind) and self.dtype == np.uint8


@dataclass(frozen=True)
class _Conversion:
    """Batches of items -> those of a policy; it pickles for workers.

    Attributes:
      masks: their names -> the paths of masks in the items.
      extras: names -> paths.
      task: the path of the text, and the place in its window, or -1 for one without a window; None without a task.
    """

    where: str
    columns: tuple[_Column, ...]
    masks: tuple[tuple[str, str], ...]
    extras: tuple[tuple[str, str], ...]
    task: str | None
    return_uint8: bool
    map: Callable[[dict[str, Any]], Any] | None

    def __call__(self, batch: Batch) -> Any:
        if not isinstance(batch, Batch):
            raise ConfigError(f"{self.where}: expected a batch of a table or of local, got {type(batch).__name__}")
        leaves = flatten(batch.data)
        taken: dict[str, Any] = {column.name: self._convert(column, leaves) for column in self.columns}
        for name, path in (*self.masks, *self.extras):
            values = tensor_of(self._leaf(path, leaves))
            taken[name] = values.float() if values.is_floating_point() else values
        if self.task is not None:
            texts = np.asarray(self._leaf(self.task, leaves))
            taken[TASK] = [_text_of(text) for text in texts.reshape(len(texts), -1)[:, -1]]
        return taken if self.map is None else self.map(taken)

    def _convert(self, column: _Column, leaves: Mapping[str, Any]) -> Any:
        values = tensor_of(self._leaf(column.path, leaves))
        shape, expected = tuple(values.shape)[1 + column.has_window :], column.shape
        if shape != expected and not _only_layout_differs(shape, column):
            raise ConfigError(
                f'{self.where}: "{column.path}": expected {list(expected)}, as of the items that were looked at, got {list(shape)}'
            )
        if column.kind == PLANE:
            values = values.unsqueeze(-3)
        elif column.kind and column.kind != FIRST:
            values = values.movedim(-1, -3)
        elif len(shape) < len(expected):  # a number: LeRobot's have one axis
            values = values.unsqueeze(-1)
        if column.is_scaled:
            # Dense first, in bytes: convolutions of other strides round otherwise.
            return values.contiguous() if self.return_uint8 else values.contiguous().float().div_(255)
        return values.float().contiguous()

    def _leaf(self, path: str, leaves: Mapping[str, Any]) -> Any:
        leaf = leaves.get(path)
        if leaf is None or isinstance(leaf, list):
            came = "items that differ in shape" if isinstance(leaf, list) else f"items with {', '.join(leaves)}"
            raise ConfigError(
                f'{self.where}: "{path}": expected a column of batches as those that were looked at, got {came}'
            )
        return leaf


def _only_layout_differs(shape: tuple[int, ...], column: _Column) -> bool:
    if column.kind == FIRST:
        return (*shape[1:], shape[0]) == column.shape
    if column.kind == PLANE:
        return (*shape, 1) == column.shape
    return not column.kind and shape == () and column.shape == (1,)


def _text_of(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


# Of a config.


def _name_of_policy(config: Any) -> str:
    if isinstance(config, type) or not hasattr(config, "action_delta_indices"):
        came = f"the class {config.__name__}" if isinstance(config, type) else type(config).__name__
        raise ConfigError(f"expected the config of a policy of LeRobot, such as ACTConfig(...), got {came}")
    return f"policy {config.type}"


def _indices_of(config: Any, name: str) -> list[int] | None:
    _name_of_policy(config)
    indices = getattr(config, f"{name}_delta_indices", None)
    return None if indices is None else [int(index) for index in indices]


# Of the items.


def _open_parts(items: Any) -> list[tuple[Nest, Any, ViewLike]]:
    """As `_open_items`, of every part of a mixture."""
    if isinstance(items, (LocalDataset, TableDataset, MixDataset)) and items.map is not None:
        raise ConfigError(
            f"PolicyData: the {type(items).__name__} has a map; expected it of the whole: PolicyData(..., map=), which is called with what the "
            "policy takes"
        )
    if isinstance(items, MixDataset):
        return [opened for part, _ in items.parts for opened in _open_parts(part)]
    return [_open_items(items)]


def _open_items(items: Any) -> tuple[Nest, Any, ViewLike]:
    """The signature of the items, how their images are decoded, and their view; "" where that is not known."""
    if isinstance(items, LocalDataset):
        batches = items.make_local(items.options, None)
        return batches.structure, items.options.decode, items.view
    if isinstance(items, TableDataset):
        options = SampleOptions(items.batch_size, **items.options)
        with open_client(items.server) as client:
            table = table_of(client.server_info(), items.table)
        return _check_signature(Packing(table, options).structure, f'table "{items.table}"'), options.decode, ""
    structure = getattr(items, "structure", None)
    if not isinstance(items, BatchIterator):
        raise ConfigError(
            f"PolicyData: expected LocalDataset, TableDataset or MixDataset, or batches of local or Client.sample, got {type(items).__name__}"
        )
    decode = getattr(getattr(items, "options", None), "decode", True)
    return _check_signature(structure, str(getattr(items, "name", ""))), decode, ""


def _check_signature(structure: Nest | None, where: str) -> Nest:
    if structure is None or not all(isinstance(leaf, ArraySpec) for leaf in flatten(structure).values()):
        raise ConfigError(f"{where}: expected a table with a signature, which says what its items hold")
    return structure


def _check_windows(config: Any, leaves: Mapping[str, ArraySpec], view: ViewLike) -> None:
    """Raises ConfigError for items whose windows are others than those of the policy, also where only their place is."""
    where, expected = _name_of_policy(config), policy_view(config)
    remedy = f"take the view policy_view(config), which is {spell_view(expected)}"
    for name in (OBSERVATION, ACTION):
        if not any(path == name or path.startswith(f"{name}/") for path in leaves):
            raise ConfigError(
                f'{where}: expected items with "{name}", got {", ".join(leaves) or "empty ones"}; {remedy}'
            )
        indices = _indices_of(config, name)
        masks = [path for path in leaves if path.endswith(IS_PAD) and path.split("/")[0] in (name, name + IS_PAD)]
        lengths = [leaves[mask].shape[0] for mask in masks]
        if lengths != ([] if indices is None else [len(indices)]):
            came = "items without a window of them" if not masks else f"windows of {', '.join(map(str, lengths))}"
            wants = "the row alone" if indices is None else f"{len(indices)} rows, at {_runs_of(indices)}"
            raise ConfigError(f"{where}: {name}: expected {wants}, got {came}; {remedy}")
    try:
        chunk = view_from(view) if view and isinstance(view, (str, Mapping)) else view
    except Rlds2ReverbError:  # the text of a view of the user's own, or one that was cut
        return
    if not isinstance(chunk, Chunk):
        return
    for option in ("history", "horizon"):
        if not chunk.is_in_seconds and getattr(chunk, option) != getattr(expected, option):
            raise ConfigError(
                f"{where}: {option}: expected {getattr(expected, option)}, got {getattr(chunk, option)}; {remedy}"
            )


def _runs_of(indices: Sequence[int]) -> str:
    is_run = len(indices) > 1 and list(indices) == list(range(indices[0], indices[-1] + 1))
    return f"{indices[0]} to {indices[-1]}" if is_run else ", ".join(map(str, indices))


def _choose_columns(
    where: str, config: Any, leaves: Mapping[str, ArraySpec], decode: Any, names: Mapping[str, str]
) -> list[_Column]:
    """The columns of observations and actions that the policy takes, by LeRobot's names."""
    if not isinstance(names, Mapping):
        raise ConfigError(f"{where}: names: expected LeRobot's name -> path of the column, got {type(names).__name__}")
    numeric = {
        path: leaf
        for path, leaf in leaves.items()
        if path.split("/")[0] in (OBSERVATION, ACTION)
        and not path.endswith(IS_PAD)
        and (leaf.dtype.kind != "O" or leaf.image)
    }
    inputs = getattr(config, "input_features", None) or {}
    for name, path in names.items():
        if path not in numeric:
            raise ConfigError(
                f'{where}: names: "{name}" is column "{path}", which the items lack; they have {", ".join(numeric)}'
                f"{did_you_mean(path, numeric)}"
            )
        is_action = path.split("/")[0] == ACTION
        if name != ACTION if is_action else not name.startswith(f"{OBSERVATION}.") and name not in inputs:
            expected = f'"{ACTION}"' if is_action else f'a name that begins with "{OBSERVATION}."'
            raise ConfigError(
                f'{where}: names: "{name}" is column "{path}"; expected {expected} for a column of {path.split("/")[0]}s'
            )
    paths = {_usual_name(path): path for path in numeric if path not in names.values()} | dict(names)
    kept = [*inputs, ACTION] if inputs else [name for name in paths if name == ACTION or not name.startswith(ACTION)]
    for name in (*kept, ACTION):
        if name not in paths:
            what = "camera" if name in inputs and inputs[name].type is FeatureType.VISUAL else "feature"
            raise ConfigError(
                f'{where}: it wants the {what} "{name}", which the items lack; they have {", ".join(paths)}'
                f'{did_you_mean(name, paths)}; names={{"{name}": PATH}} says which column it is, and a transform (join) makes one of several'
            )
    by_name = {OBSERVATION: _indices_of(config, OBSERVATION), ACTION: _indices_of(config, ACTION)}
    columns = []
    for name in kept:
        path = paths[name]
        has_window = by_name[path.split("/")[0]] is not None
        columns.append(_column_of(where, name, path, leaves[path], has_window, decode))
    return columns


def _usual_name(path: str) -> str:
    return STATE if path == OBSERVATION else path.replace("/", ".")


def _column_of(where: str, name: str, path: str, leaf: ArraySpec, has_window: bool, decode: Any) -> _Column:
    row = ArraySpec(leaf.shape[has_window:], leaf.dtype, leaf.name)
    image, shape, dtype = kind(row), row.shape, row.dtype
    if image == FILE:
        stored: ImageSpec | None = row.image
        assert stored is not None
        if decode is False:
            raise ConfigError(
                f'{where}: "{path}" holds image files, and decode=False leaves them; leave that option out'
            )
        shape, dtype = stored.shape, stored.dtype
        if isinstance(decode, Size):
            shape = (decode.height, decode.width, stored.shape[2])
    elif image == FIRST:
        shape = (*shape[1:], shape[0])
    elif image == PLANE:
        shape = (*shape, 1)
    elif not shape:
        shape = (1,)
    sizes = [size for size in shape if size is not None]
    if len(sizes) < len(shape):
        remedy = "decode=(height, width) gives images one size" if image else "a transform gives it one shape"
        raise ConfigError(f'{where}: "{path}": expected rows of one shape, got {row}; {remedy}')
    return _Column(name, path, tuple(sizes), image, np.dtype(dtype), has_window)


def _choose_masks(columns: Sequence[_Column], leaves: Mapping[str, ArraySpec]) -> Iterator[tuple[str, str]]:
    for column in columns:
        parts = column.path.split("/")
        above = ["/".join(parts[:count]) + IS_PAD for count in range(len(parts), 0, -1)]
        mask = next((path for path in above if path in leaves), None)
        if mask is not None:
            yield column.name + IS_PAD, mask


def _choose_extras(leaves: Mapping[str, ArraySpec]) -> Iterator[tuple[str, str]]:
    """Further columns of numbers, as LeRobot calls them."""
    for path, leaf in leaves.items():
        if path.startswith(f"{EXTRAS}/") and leaf.dtype.kind != "O":
            inside = path.removeprefix(f"{EXTRAS}/").removeprefix(f"{METADATA}/")
            yield NEXT_REWARD if inside == REWARD else inside.replace("/", "."), path


def _choose_task(where: str, leaves: Mapping[str, ArraySpec], task: str) -> str | None:
    texts = [path for path, leaf in leaves.items() if leaf.dtype.kind == "O" and leaf.image is None]
    if task:
        inside = [path for path in (task, f"{EXTRAS}/{task}") if path in texts]
        if not inside:
            raise ConfigError(
                f'{where}: task: "{task}": expected a text in the items, which have {", ".join(texts) or "no text"}; '
                f'policy_view(config, extras="{task}") adds one'
            )
        return inside[0]
    return next((path for name in _TASKS for path in texts if path.split("/")[-1] == name), None)


def _feature_of(column: _Column) -> dict[str, Any]:
    if column.kind:
        return {"dtype": "image", "shape": column.shape, "names": ["height", "width", "channels"]}
    return {"dtype": "float32", "shape": column.shape, "names": None}


def _type_of(column: _Column) -> FeatureType:
    if column.kind:
        return FeatureType.VISUAL
    if column.name == ACTION:
        return FeatureType.ACTION
    return FeatureType.ENV if column.name == ENVIRONMENT_STATE else FeatureType.STATE


def _check_shapes(
    where: str, config: Any, inputs: Mapping[str, PolicyFeature], outputs: Mapping[str, PolicyFeature]
) -> None:
    """Raises ConfigError for a feature of another shape than the config says."""
    expected = {**(getattr(config, "input_features", None) or {}), **(getattr(config, "output_features", None) or {})}
    for name, feature in {**inputs, **outputs}.items():
        if name in expected and tuple(expected[name].shape) != feature.shape:
            remedy = "; decode=(height, width), or a push with resize, makes them so" if len(feature.shape) == 3 else ""
            raise ConfigError(
                f'{where}: "{name}": expected {list(expected[name].shape)}, as the config says, got {list(feature.shape)}{remedy}'
            )


# Statistics.


def _choose_stats(
    where: str,
    config: Any,
    columns: Sequence[_Column],
    types: Mapping[str, FeatureType],
    statistics: DatasetStatistics | str | Path | None,
    imagenet: bool,
) -> dict[str, dict[str, Array]]:
    """Those of the columns, in LeRobot's form; raises ConfigError where the policy's processors would need more."""
    if isinstance(statistics, (str, Path)):
        statistics = DatasetStatistics.read(statistics)
    if not isinstance(statistics, (DatasetStatistics, NoneType)):
        raise ConfigError(
            f"PolicyData: statistics: expected rlds2reverb.statistics(...) or a file of them, got {type(statistics).__name__}"
        )
    stats: dict[str, dict[str, Array]] = {}
    if statistics is not None:
        stats = _stats_by_name(statistics, columns)
    for column in columns:
        if imagenet and column.is_scaled and column.shape[2] == 3:
            stats.setdefault(column.name, {}).update(
                {name: np.array(values)[:, None, None] for name, values in _IMAGENET.items()}
            )
    modes = {str(getattr(kind, "value", kind)): mode for kind, mode in config.normalization_mapping.items()}
    for column in columns:
        mode = modes.get(types[column.name].value)
        mode = str(getattr(mode, "value", mode))  # IDENTITY where there is none
        own = stats.get(column.name, {})
        if missing := [name for name in _NEEDED.get(mode, ()) if name not in own]:
            images = ", images=True" if column.kind else ""
            came = "no statistics" if statistics is None else f"those of {', '.join(statistics) or 'nothing'}"
            raise ConfigError(
                f'{where}: it normalises "{column.name}" by {mode}, which needs {" and ".join(missing)}, and got {came}: give '
                f"statistics=rlds2reverb.statistics(SOURCE{images}), with the same transform, or a file of them; "
                f'normalization_mapping={{"{types[column.name].value}": NormalizationMode.IDENTITY}} normalises nothing'
            )
        shape = (column.shape[2], 1, 1) if column.kind else column.shape[-1:]
        for name, values in own.items():
            if name != "count" and values.shape != shape:
                raise ConfigError(
                    f'{where}: statistics of another signature: "{column.name}": {name}: expected {list(shape)}, got {list(values.shape)}'
                )
    return stats


def _stats_by_name(statistics: DatasetStatistics, columns: Sequence[_Column]) -> dict[str, dict[str, Array]]:
    """Looks each column up by its path, or as a file of LeRobot's that has only its name."""
    stats: dict[str, dict[str, Array]] = {}
    for column in columns:
        usual = (column.path, column.name, column.name.replace(".", "/"))
        path = next((path for path in usual if path in statistics), None)
        if path is None:
            continue
        document = lerobot_document(DatasetStatistics({path: statistics[path]}), {column.name: path})
        stats[column.name] = {
            statistic: np.array(values) for statistic, values in document.get(column.name, {}).items()
        }
    return stats


__all__ = ["PolicyData", "policy_view"]
