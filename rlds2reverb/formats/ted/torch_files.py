"""Files of `torch.save`, read without torch: TensorDicts, lists of them, a buffer's `state_dict`, nested dicts of tensors.

Such a file is a ZIP archive: `data.pkl` is a pickle, in which tensors refer to storages, and `data/0`, `data/1`, ... are the bytes of these, not
compressed. The pickle runs nothing (`pickles`): of torch and tensordict it may name tensors, storages, sizes, devices, TensorDicts and values that
are no tensors. Everything else is refused by its name, such as classes of a program of one's own, with what to save instead. Tensors are read from
the file when they are asked for; only one whose values do not lie side by side is copied.

Sources: torch/serialization.py (`_save`, `_load`), torch/_utils.py (`_rebuild_tensor_v2`, `_rebuild_tensor_v3`), version 2.13; tensordict/_reductions.py,
tensordict/base.py (`state_dict`), version 0.14; torchrl/data/replay_buffers (`state_dict`), version 0.14. Observed, too.
"""

from __future__ import annotations

import math
import struct
import zipfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rlds2reverb.episode import Array
from rlds2reverb.errors import SourceError
from rlds2reverb.files import check_regular
from rlds2reverb.formats.buckets import local_copy
from rlds2reverb.formats.paths import stamp_of
from rlds2reverb.formats.pickles import PERSISTENT, Inert, safe_loads
from rlds2reverb.formats.ted.folders import MOST_NESTED, Folder, Leaf, PerRow, RawFile, leaf_of
from rlds2reverb.formats.ted.keys import DTYPES
from rlds2reverb.formats.ted.memory import TIME, HeldBuffer, join_trajectories
from rlds2reverb.formats.ted.sampler import FACTS, Priorities, priorities_of
from rlds2reverb.text import shortened

ENDINGS = (".pt", ".pth")
_ZIP = b"PK\x03\x04"
_MOST_PICKLED_BYTES = 256 << 20
_MOST_COPIED_BYTES = 256 << 20  # of a tensor whose values do not lie side by side, or as much as the file has
_LOCAL_HEADER = struct.Struct("<26xHH")  # of a member of a ZIP archive: the lengths of its name and of its extra field

_TENSORS = {f"torch._utils._rebuild_tensor_v{version}" for version in (2, 3)}
_PARAMETER = "torch._utils._rebuild_parameter"
_SIZE = "torch.Size"
_STORAGES = {
    f"torch.{name}Storage": f"torch.{dtype}"
    for name, dtype in {
        "Bool": "bool", "Byte": "uint8", "Char": "int8", "Short": "int16", "Int": "int32", "Long": "int64", "Half": "float16", "BFloat16": "bfloat16",
        "Float": "float32", "Double": "float64", "ComplexFloat": "complex64", "ComplexDouble": "complex128",
    }.items()
}  # fmt: skip
_UNTYPED = "torch.storage.UntypedStorage"
_MADE = "tensordict._reductions._make_td"
_TENSORDICTS = {"tensordict._td.TensorDict", "tensordict._lazy.LazyStackedTensorDict"}
_NON_TENSOR = "tensordict.tensorclass.NonTensorData"
_NON_TENSORS = "tensordict.tensorclass.NonTensorStack"
_TREES = {f"torchrl._torchrl.{kind}SegmentTreeFp{bits}" for kind in ("Sum", "Min") for bits in (32, 64)}
_INERT = frozenset(
    {
        *_TENSORS,
        _PARAMETER,
        _SIZE,
        "torch.device",
        *_STORAGES,
        _UNTYPED,
        *DTYPES,
        _MADE,
        *_TENSORDICTS,
        _NON_TENSOR,
        _NON_TENSORS,
        *_TREES,
    }
)
_INSTEAD = "save a TensorDict (data.to_tensordict()), its state_dict(), or a dict of tensors; or dump the buffer: buffer.dumps(FOLDER)"


def is_torch_file(path: Path) -> bool:
    """Whether a file is of `torch.save`, by its first bytes, or by its name where these are not known. Raises `OSError`."""
    check_regular(path)
    with Path(local_copy(path)).open("rb") as file:
        return file.read(len(_ZIP)) == _ZIP or path.suffix in ENDINGS


def read_torch_file(path: Path) -> list[HeldBuffer]:
    """The buffers of a file: one, or those of an ensemble.

    Raises:
      SourceError: it is damaged, written by a torch before 1.6, or holds what is not read.
    """
    content = _Archive(path).load()
    if isinstance(content, dict) and "_storage" in content:
        return _of_buffer(str(path), content)
    return [HeldBuffer(_folder_of(content, str(path)))]


class _Archive:
    """The ZIP archive of a file, and the tensors in it."""

    def __init__(self, path: Path) -> None:
        self._path, self._where, self._stamp = path, str(path), stamp_of(path)
        self._members: dict[str, tuple[int, int]] = {}
        """Name below the archive's one folder -> where its bytes begin, and how many there are."""
        try:
            with Path(local_copy(path)).open("rb") as file, zipfile.ZipFile(file) as archive:
                for member in archive.infolist():
                    if member.compress_type != zipfile.ZIP_STORED or member.file_size != member.compress_size:
                        raise SourceError(
                            f"{path}: {shortened(member.filename)} is compressed, which torch.save does not do"
                        )
                    file.seek(member.header_offset)
                    name, extra = _LOCAL_HEADER.unpack(file.read(_LOCAL_HEADER.size))
                    begin = member.header_offset + _LOCAL_HEADER.size + name + extra
                    if begin + member.file_size > self._stamp[0]:
                        raise SourceError(f"{path}: ends before the bytes of {shortened(member.filename)}")
                    self._members[member.filename.partition("/")[2]] = begin, member.file_size
        except (OSError, zipfile.BadZipFile, struct.error, ValueError, NotImplementedError) as error:
            if self._begins_as_archive():
                raise SourceError(
                    f"{path}: the file of torch.save is cut off or damaged ({error}); copy or download it again"
                ) from error
            raise SourceError(
                f"{path}: expected a file of torch.save, a ZIP archive: {error}. One of a torch before 1.6 is read by torch only: {_INSTEAD}"
            ) from error

    def _begins_as_archive(self) -> bool:
        """Whether the file is empty, or what is there begins as one of torch.save does."""
        with suppress(OSError), Path(local_copy(self._path)).open("rb") as file:
            return _ZIP.startswith(file.read(len(_ZIP)))
        return False

    def load(self) -> Any:
        """What was saved: dicts, lists, values, `Leaf`s, and TensorDicts as `Folder`s."""
        order = self._bytes_of("byteorder") if "byteorder" in self._members else b"little"
        if order != b"little":
            raise SourceError(f"{self._where}: byteorder {shortened(repr(order))}: only little-endian files are read")
        try:
            content = safe_loads(self._bytes_of("data.pkl"), f"{self._where}: data.pkl", _INERT, has_references=True)
        except SourceError as error:
            raise SourceError(f"{error}. Of torch only tensors and TensorDicts are read: {_INSTEAD}") from error
        return self._resolve(content, 0)

    def _bytes_of(self, name: str) -> bytes:
        if name not in self._members:
            raise SourceError(f"{self._where}: no {name} in it: not a file of torch.save")
        begin, size = self._members[name]
        if size > _MOST_PICKLED_BYTES:
            raise SourceError(f"{self._where}: {name}: expected at most {_MOST_PICKLED_BYTES:,} bytes, found {size:,}")
        read = np.empty(size, np.uint8)
        RawFile(self._path, self._stamp, begin).read(0, read)
        return read.tobytes()

    def _resolve(self, value: Any, depth: int) -> Any:
        if depth > 2 * MOST_NESTED:
            raise SourceError(f"{self._where}: nested more than {MOST_NESTED} deep")
        if isinstance(value, dict):
            resolved = {key: self._resolve(part, depth + 1) for key, part in value.items()}
            # A state dict of a TensorDict says its batch size beside its keys; that of a module has metadata, too.
            metadata = getattr(value, "_metadata", None)
            if isinstance(metadata, dict) and isinstance(about := metadata.get(""), dict) and "batch_size" in about:
                return self._of_state(resolved, metadata)
            return resolved
        if isinstance(value, (list, tuple)):
            return [self._resolve(part, depth + 1) for part in value]
        if not isinstance(value, Inert):
            return value
        name = value.class_name
        if name in _TENSORS:
            return self._tensor(name, value.arguments)
        if name == _PARAMETER and value.arguments:
            return self._resolve(value.arguments[0], depth + 1)
        if (
            name == _MADE and len(value.arguments) == 2 and isinstance(value.arguments[1], dict)
        ):  # the class, and its state
            return self._tensordict(value.arguments[1], depth)
        if name in (_NON_TENSOR, _NON_TENSORS, *_TENSORDICTS) and isinstance(value.state, dict):
            return self._tensordict(value.state, depth)
        return value

    def _tensordict(self, state: Mapping[str, Any], depth: int) -> Any:
        if isinstance(state.get("non_tensordict"), dict):
            return _NonTensor(state["non_tensordict"].get("data"))
        if isinstance(state.get("tensordicts"), list):
            parts = [self._resolve(part, depth + 1) for part in state["tensordicts"]]
            if parts and all(isinstance(part, _NonTensor) for part in parts):
                return PerRow([part.value for part in parts])
            return _stack(self._where, parts, state.get("stack_dim"))
        keys = state.get("_tensordict")
        if not isinstance(keys, dict):
            raise SourceError(f"{self._where}: a TensorDict of another version, without its keys: {_INSTEAD}")
        names = state.get("_td_dim_names")
        time = names.index(TIME) if isinstance(names, list) and TIME in names else None
        batch = self._sizes("batch size", state.get("_batch_size"))
        leaves, others = self._keys(keys, depth)
        return Folder(batch, leaves, others, is_whole=True, time=time)

    def _keys(self, keys: Mapping[Any, Any], depth: int) -> tuple[dict[str, Leaf], dict[str, Any]]:
        leaves: dict[str, Leaf] = {}
        others: dict[str, Any] = {}
        for key, value in keys.items():
            part = self._resolve(value, depth + 1)
            if isinstance(part, Folder):
                _add_keys(self._where, leaves, {f"{key}/{name}": leaf for name, leaf in part.leaves.items()})
                _add_keys(self._where, others, {f"{key}/{name}": other for name, other in part.others.items()})
            elif isinstance(part, Leaf):
                _add_keys(self._where, leaves, {str(key): part})
            else:
                _add_keys(self._where, others, {str(key): part.value if isinstance(part, _NonTensor) else part})
        return leaves, others

    def _of_state(self, resolved: Mapping[Any, Any], metadata: Mapping[str, Any]) -> Folder:
        leaves, others = _flatten(self._where, resolved)
        for key, said in metadata.items():
            if isinstance(said, dict) and isinstance(said.get("_non_tensor"), dict):
                others[key.replace(".", "/")] = said["_non_tensor"].get("data")
        return Folder(self._sizes("batch size", metadata[""]["batch_size"]), leaves, others, is_whole=True)

    def _sizes(self, what: str, sizes: Any) -> tuple[int, ...]:
        sizes = (
            sizes.arguments[0] if isinstance(sizes, Inert) and sizes.class_name == _SIZE and sizes.arguments else sizes
        )
        if (
            not isinstance(sizes, (tuple, list))
            or len(sizes) > MOST_NESTED
            or not all(type(size) is int and 0 <= size < 1 << 62 for size in sizes)
        ):
            raise SourceError(f"{self._where}: a {what} {shortened(repr(sizes))}: expected sizes of at least 0")
        return tuple(sizes)

    def _tensor(self, function: str, arguments: tuple[Any, ...]) -> Leaf:
        """A tensor: its storage, and its place, sizes and strides in it."""
        if len(arguments) < 4 or not isinstance(arguments[0], Inert) or arguments[0].class_name != PERSISTENT:
            raise SourceError(f"{self._where}: a tensor without a storage in the file; save tensors that lie in memory")
        reference, first = arguments[0].arguments[0], arguments[1]
        sizes, strides = self._sizes("shape", arguments[2]), self._sizes("stride", arguments[3])
        if (
            not isinstance(reference, tuple)
            or len(reference) < 3
            or reference[0] != "storage"
            or type(first) is not int
            or first < 0
        ):
            raise SourceError(
                f"{self._where}: a tensor that refers to {shortened(repr(reference))}; expected a storage"
            )
        kind = getattr(reference[1], "class_name", "")
        name = _STORAGES.get(kind, "")
        if function.endswith("v3") and len(arguments) > 6:  # the dtype stands beside an untyped storage
            name = getattr(arguments[6], "class_name", "")
        if name not in DTYPES or len(strides) != len(sizes):
            raise SourceError(
                f"{self._where}: a tensor of {shortened(name or kind or repr(reference[1]))}: expected one of {', '.join(DTYPES)}"
            )
        member = f"data/{reference[2]}"
        if member not in self._members:
            raise SourceError(f"{self._where}: no {shortened(member)} in it, to which a tensor refers")
        begin, held = self._members[member]
        dtype, count = DTYPES[name], math.prod(sizes)
        # One behind the last value that the tensor has.
        stop = first + 1 + sum((size - 1) * stride for size, stride in zip(sizes, strides)) if count else first
        if stop * dtype.itemsize > held:
            raise SourceError(
                f"{self._where}: {shortened(member)}: has {held:,} bytes; expected at least {stop * dtype.itemsize:,} for {name} {list(sizes)}"
            )
        begin += first * dtype.itemsize
        if not count or _is_contiguous(sizes, strides):
            return Leaf(dtype, sizes, RawFile(self._path, self._stamp, begin))
        if count * dtype.itemsize > max(_MOST_COPIED_BYTES, self._stamp[0]):
            raise SourceError(
                f"{self._where}: {shortened(member)}: {name} {list(sizes)} of strides {list(strides)}: save it as contiguous()"
            )
        values = np.empty(stop - first, np.uint8 if dtype == bool else dtype)
        RawFile(self._path, self._stamp, begin).read(0, values)
        spread = np.lib.stride_tricks.as_strided(values, sizes, [stride * dtype.itemsize for stride in strides])
        return Leaf(dtype, sizes, held=np.ascontiguousarray(spread))


@dataclass(frozen=True)
class _NonTensor:
    value: Any


def _is_contiguous(sizes: Sequence[int], strides: Sequence[int]) -> bool:
    expected = 1
    for size, stride in zip(reversed(sizes), reversed(strides)):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def _add_keys(where: str, keys: dict[str, Any], more: Mapping[str, Any]) -> None:
    for key, value in more.items():
        if key in keys:
            raise SourceError(f'{where}: two keys "{key}"; a name with "/" or "." in it stands for nested ones')
        keys[key] = value


def _stack(where: str, parts: Sequence[Any], at: Any) -> Folder:
    """A lazy stack: its parts beside each other, or, where they differ in length, a trajectory each."""
    folders = [part for part in parts if isinstance(part, Folder)]
    if not folders or len(folders) < len(parts) or type(at) is not int or not 0 <= at <= len(folders[0].batch):
        raise SourceError(f"{where}: a lazy stack without parts, or along {shortened(repr(at))}")
    first = folders[0]
    if at == 0 and any(part.batch != first.batch for part in folders):
        return join_trajectories(folders)
    layouts = [(part.batch, {key: (leaf.dtype, leaf.shape) for key, leaf in part.leaves.items()}) for part in folders]
    if any(layout != layouts[0] for layout in layouts):
        raise SourceError(f"{where}: the parts of a lazy stack differ in their keys or shapes; save them as a list")
    leaves = {
        key: Leaf(
            leaf.dtype,
            shape := (*leaf.shape[:at], len(folders), *leaf.shape[at:]),
            held=np.stack([part.leaves[key].read() for part in folders], at).reshape(shape),
        )
        for key, leaf in first.leaves.items()
    }
    others = {key: PerRow([part.others.get(key) for part in folders]) for key in first.others} if at == 0 else {}
    return Folder((*first.batch[:at], len(folders), *first.batch[at:]), leaves, others, is_whole=True)


def _flatten(where: str, tree: Mapping[Any, Any], prefix: str = "") -> tuple[dict[str, Leaf], dict[str, Any]]:
    """The keys of nested dicts; "." in a name nests, too, as in a state dict."""
    leaves: dict[str, Leaf] = {}
    others: dict[str, Any] = {}
    for name, value in tree.items():
        key = f"{prefix}{str(name).replace('.', '/')}"
        if isinstance(value, Folder):
            _add_keys(where, leaves, {f"{key}/{below}": leaf for below, leaf in value.leaves.items()})
            _add_keys(where, others, {f"{key}/{below}": other for below, other in value.others.items()})
        elif isinstance(value, dict):
            below, further = _flatten(where, value, f"{key}/")
            _add_keys(where, leaves, below)
            _add_keys(where, others, further)
        elif isinstance(value, (Leaf, np.ndarray)):
            _add_keys(where, leaves, {key: value if isinstance(value, Leaf) else leaf_of(value)})
        else:
            _add_keys(where, others, {key: value.value if isinstance(value, _NonTensor) else value})
    return leaves, others


def _folder_of(content: Any, where: str) -> Folder:
    """A TensorDict, a dict of tensors whose first size is the batch, or a list of such, which are a trajectory each."""
    if isinstance(content, Folder):
        return content
    if isinstance(content, list):
        return join_trajectories([_folder_of(part, f"{where}: number {at}") for at, part in enumerate(content)])
    if not isinstance(content, dict):
        what = content.class_name if isinstance(content, Inert) else type(content).__name__
        raise SourceError(
            f"{where}: holds a {shortened(what)}; expected a TensorDict, a dict of tensors, a list of these, or a buffer's state_dict()"
        )
    leaves, others = _flatten(where, content)
    lengths = {leaf.shape[:1] for leaf in leaves.values()}
    if len(lengths) != 1 or () in lengths:
        named = ", ".join(f"{key.replace('/', '.')} {list(leaf.shape)}" for key, leaf in sorted(leaves.items()))
        raise SourceError(
            f"{where}: expected a dict of tensors with one first size, of steps or trajectories; found {shortened(named) or 'no tensor'}"
        )
    return Folder(lengths.pop(), leaves, others, is_whole=True)


def _of_buffer(where: str, state: Mapping[str, Any]) -> list[HeldBuffer]:
    """The state of a buffer; the parts of an ensemble's have numbers."""
    storage, writer, sampler = (_dict(state.get(key)) for key in ("_storage", "_writer", "_sampler"))
    if "_storage" in storage:
        return [_of_storage(where, storage, writer, sampler)]
    if "_len" in state or isinstance(state["_storage"], Folder):  # the state of a storage alone
        return [_of_storage(where, state, {}, {})]
    numbers = [str(number) for number in range(len(storage))]
    if not numbers or set(numbers) != set(map(str, storage)):
        raise SourceError(
            f"{where}: a state_dict whose storage has {shortened(', '.join(map(str, storage))) or 'nothing'}; expected that of a ReplayBuffer"
        )
    members = {str(number): _dict(part) for number, part in storage.items()}
    return [
        _of_storage(f"{where}: buffer {number}", members[number], _dict(writer.get(number)), _dict(sampler.get(number)))
        for number in numbers
    ]


def _dict(value: Any) -> dict[Any, Any]:
    return value if isinstance(value, dict) else {}


def _of_storage(
    where: str, storage: Mapping[str, Any], writer: Mapping[str, Any], sampler: Mapping[str, Any]
) -> HeldBuffer:
    stored = storage.get("_storage")
    if isinstance(stored, Leaf):
        raise SourceError(f"{where}: the storage of one tensor, without keys; expected TensorDicts")
    folder = _folder_of(stored, f"{where}: _storage")
    length = storage.get("_len")
    if isinstance(stored, list):
        length = None
    elif type(length) is not int or length < 0:
        raise SourceError(f"{where}: _len {shortened(repr(length))}: expected a number of rows")
    said = {name: writer[f"_{name}"] for name in ("cursor", "write_count") if f"_{name}" in writer}
    if "_top_values" in writer:  # of a TensorDictMaxValueWriter, whose rows stand in no order
        said["rank_key"] = "_top_values"
    return HeldBuffer(folder, length, said, _priorities(where, sampler))


def _priorities(where: str, sampler: Mapping[str, Any]) -> Priorities | None:
    tree = sampler.get("_sum_tree")
    if tree is None:
        return None
    # pybind11's pickle of a segment tree: its values, of all rows.
    values = (
        tree.state[0] if isinstance(tree, Inert) and isinstance(tree.state, tuple) and len(tree.state) == 1 else None
    )
    if not isinstance(values, np.ndarray) or values.dtype.kind != "f" or values.ndim != 1:
        raise SourceError(
            f"{where}: the sampler's tree is of another version; priorities=drop reads the data without it, buffer.dumps(FOLDER) keeps it"
        )
    facts = {name: sampler.get(f"_{name}") for name in FACTS}
    highest = facts.pop("max_priority")
    if isinstance(highest, list) and highest and isinstance(highest[0], Leaf):
        facts["max_priority"] = _number(highest[0].read())
    return priorities_of(f"{where}: _sampler", values.astype(np.float64), facts)


def _number(value: Array) -> float:
    return float(value.reshape(-1)[0])
