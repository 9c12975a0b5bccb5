"""The public surface is pinned: names, signatures and fields; and everything public has a docstring."""

from __future__ import annotations

import ast
import importlib
import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest

import rlds2reverb

ROOT = Path(rlds2reverb.__file__).parent
SERVER = ROOT.parent / "server" / "replay_server"

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef

SURFACE = """
class Batch(NamedTuple)
    data: Nest
    info: BatchInfo
    @property size(self) -> int
class BatchInfo(NamedTuple)
    key: Array
    probability: Array
    table_size: Array
    priority: Array
    times_sampled: Array
    weight: Array | None = None
    mask: Array | None = None
    masks: Mapping[str, Array] | None = None
    start: Array | None = None
    source: Array | None = None
    @property ends(self) -> Array | None
class Certificates()
    authority: bytes | None = None
    key: bytes | None = field(default=None, repr=False)
    certificate: bytes | None = None
    credentials(self) -> grpc.ChannelCredentials
class Client()
    __init__(self, transport: Transport) -> None
    __enter__(self) -> Client
    __exit__(self, *_: object) -> None
    close(self) -> None
    server_info(self) -> ServerInfo
    target(self, table: str | Sequence[str], view: ViewLike='two_step', allow_other_views: bool=False) -> Target
    tables(self) -> dict[str, TableInfo]
    sample(self, table: str, batch_size: int=SampleOptions.batch_size, **options: Any) -> Sampler
    sample_one(self, table: str, timeout_seconds: float | None=GIVE_UP_SECONDS) -> Batch
    writer(self, table: str | Sequence[str] | Mapping[str, ViewLike], view: ViewLike | None=None, **options: Any) -> EpisodeWriter
    update_priorities(self, table: str, keys: npt.ArrayLike, priorities: npt.ArrayLike) -> None
    delete(self, table: str, keys: npt.ArrayLike) -> None
    reset(self, table: str) -> None
    checkpoint(self, seconds: float=600.0) -> str
    @takes(PushOptions) plan(self, source: Any, options: PushOptions) -> PushPlan
    @takes(PushOptions) push(self, source: Any, options: PushOptions) -> PushReport
    planned(self, source: Any, options: PushOptions) -> PushPlan
    pusher(self, plan: PushPlan, source: Named) -> Pusher | DividedPush
class ClientGroup()
    __init__(self, transports: Sequence[Transport], allow_missing: bool=False, ask_seconds: float=ASK_SECONDS, missing: Mapping[int, ServerUnreachable] | None=None, names: Sequence[str] | None=None) -> None
    __enter__(self) -> ClientGroup
    __exit__(self, *_: object) -> None
    close(self) -> None
    @property addresses(self) -> tuple[str, ...]
    @property missing(self) -> tuple[str, ...]
    servers(self) -> dict[str, ServerInfo]
    server_info(self) -> ServerInfo
    tables(self) -> dict[str, TableInfo]
    sample(self, table: str, batch_size: int=SampleOptions.batch_size, **options: Any) -> Sampler
    sample_one(self, table: str, timeout_seconds: float | None=GIVE_UP_SECONDS) -> Batch
    update_priorities(self, table: str, keys: npt.ArrayLike, priorities: npt.ArrayLike) -> None
    delete(self, table: str, keys: npt.ArrayLike) -> None
    reset(self, table: str) -> None
    checkpoint(self, seconds: float=600.0) -> dict[str, str]
    @takes(PushOptions) plan(self, source: Any, options: PushOptions) -> SeveralPlan
    @takes(PushOptions) push(self, source: Any, options: PushOptions) -> PushReport
    planned(self, source: Any, options: PushOptions) -> SeveralPlan
    pusher(self, plan: PushPlan, source: Named) -> SeveralPusher | DividedPush
    target(self, *_: Any, **__: Any) -> NoReturn
    writer(self, *_: Any, **__: Any) -> NoReturn
class ConvertOptions()
    limit: int | None = None
    overwrite: bool = False
    restart: bool = False
    decode: bool = False
    verify: bool = False
    allow_loss: Sequence[str] = ()
    workers: int | None = None
    ray: str | None = None
    on_progress: Callable[[Progress], object] = field(default=unheard, compare=False)
class ConvertReport()
    source: str
    destination: str
    path: str = ''
    episodes_read: int = 0
    steps_read: int = 0
    episodes_written: int = 0
    steps_written: int = 0
    episodes_resumed: int = 0
    rejected: Mapping[str, int] = field(default_factory=dict)
    steps_rejected: int = 0
    advice: Mapping[str, int] = field(default_factory=dict)
    repaired: Mapping[str, int] = field(default_factory=dict)
    ends_mended: int = 0
    losses: tuple[Lost, ...] = ()
    notices: tuple[Remark, ...] = ()
    encoded: tuple[str, ...] = ()
    bytes: int = 0
    seconds: float = 0.0
    verified: int | None = None
    stopped: str = ''
    transform: Mapping[str, Any] = field(default_factory=dict)
    episodes_kept: int = 0
    workers: int = 0
    parts_again: int = 0
    @property episodes_rejected(self) -> int
    as_dict(self) -> dict[str, Any]
class Episode()
    columns: Mapping[str, Array]
    metadata: Mapping[str, Any] = field(default_factory=dict)
    id: str = ''
    faults: tuple[tuple[str, str], ...] = ()
    where: str = ''
    __len__(self) -> int
    @property recorded_id(self) -> str | None
    @property title(self) -> str
    @property nbytes(self) -> int
    with_columns(self, **columns: Array) -> Episode
    with_only_columns(self, columns: Mapping[str, Array]) -> Episode
class EpisodeWriter()
    __init__(self, transport: Transport, info: ServerInfo, options: WriteOptions, tuning: Tuning | None=None) -> None
    __enter__(self) -> EpisodeWriter
    __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None
    __len__(self) -> int
    append(self, step: Mapping[str, Any] | None=None, /, **fields: Any) -> None
    end_episode(self, step: Mapping[str, Any] | None=None, /, *, terminal: bool | None=None, id: str | None=None, metadata: Mapping[str, Any] | None=None, **fields: Any) -> None
    discard_episode(self) -> int
    episode(self, key: int | str) -> OpenEpisode
    flush(self) -> None
    close(self) -> None
    report(self) -> PushReport
    check(self) -> None
    steps_like(self, step: Any) -> Steps
    take(self, episode: Episode) -> None
    check_new(self, episode_id: str) -> None
class Local(BatchIterator)
    __init__(self, source: Opened, options: LocalOptions) -> None
    @property name(self) -> str
    @property signature(self) -> Nest
    @property rejected(self) -> dict[str, int]
    next_batch(self) -> Batch | None
    take(self, count: int) -> Batch | None
    stop(self) -> None
    close(self) -> None
    restart(self) -> None
    state(self) -> State
    restore(self, state: Mapping[str, Any], anew: bool=False) -> None
class LocalOptions()
    batch_size: int = 256
    table: str = 'replay'
    epochs: int | None = 1
    shuffle: int | bool = 0
    seed: int = 0
    drop_last: bool = False
    ragged: str = LIST
    pad_to: int | None = None
    decode: bool = True
    @property buffer_size(self) -> int
class Mix(BatchIterator)
    __init__(self, feeds: Sequence[Feed], weights: Sequence[float], options: MixOptions) -> None
    @property structure(self) -> Nest | None
    @property name(self) -> str
    next_batch(self) -> Batch | None
    take(self, count: int) -> Batch | None
    stop(self) -> None
    close(self) -> None
    state(self) -> State
    restore(self, state: Mapping[str, Any], anew: bool=False) -> None
class MixOptions()
    batch_size: int = 256
    seed: int = 0
    by: str = ITEM
    samples: int | None = None
    drop_last: bool = False
    draws: int | None = None
    sample_from_all: bool = False
    stacked: bool = False
    ragged: str = LIST
    pad_to: int | None = None
    draws_of(self, parts: int) -> int
class Problem()
    code: str
    path: str
    detail: str
    @property is_advice(self) -> bool
    @property is_repairable(self) -> bool
class Progress()
    episodes: int
    steps: int
    episode_count: int | None
    items_confirmed: int
    bytes: int
    seconds: float
    waiting: str = ''
    held_by: tuple[str, ...] = ()
    doing: str = ''
    no_less_than(self, shown: Progress | None) -> Progress
class PushOptions()
    table: str | Sequence[str] | Mapping[str, ViewLike]
    view: ViewLike | None = None
    on_invalid: str = field(default=RAISE, metadata=_told('What to do with a bad episode.', ACTIONS))
    quarantine: str | Path | None = field(default=None, metadata=_told('JSON-lines report of bad episodes; "quarantine" needs it, and nothing else takes it.'))
    allow: Sequence[str] = field(default=(), metadata=_told('Problem codes to tolerate.'))
    strict: bool = field(default=False, metadata=_told('Treat advice (terminal_discount, last_reward, ...) as a problem.'))
    terminal_discount: str = field(default=AS_RECORDED, metadata=_told('"transition": discount 0 on the step that leads into a terminal one.', TERMINAL_DISCOUNTS))
    last_reward: str = field(default=AS_RECORDED, metadata=_told('"shift": every reward moves one step back.', LAST_REWARDS))
    last_observation: str = field(default=AS_RECORDED, metadata=_told('Of a last row that was added (action and reward 0): "repeat" puts the observation before it in its place, "drop" leaves the row out.', LAST_OBSERVATIONS))
    encoded: str | Sequence[str] = field(default=(), metadata=_told('Path of an image column, or "all": store the files\\' own JPEG or PNG bytes as text, and decode when sampling.'))
    transform: TransformLike = field(default=(), metadata=_told('Columns to select, drop, rename, resize, and to join to the action: "OPTION=VALUE,...", or a YAML file.'))
    ledger: str | Path | None = field(default=None, metadata=_told('SQLite file of confirmed episodes; a killed push goes on from it.'))
    resume: bool = field(default=True, metadata=_told('Skip episodes that the ledger has.'))
    duplicates: str = field(default=KEEP, metadata=_told('Of episodes that are equal: "keep" stores each of them, "once" the first.', DUPLICATES))
    again: bool = field(default=False, metadata=_told('New item keys: store everything once more.'))
    allow_eviction: bool = field(default=False, metadata=_told('Let items of the push evict others.'))
    allow_other_views: bool = field(default=False, metadata=_told('Fill a table whose signature says that it is for another view, where the items fit it.'))
    move: bool = field(default=False, metadata=_told('Of several servers, others than before: take the items out of those where they do not belong any more, once they are stored where they do.'))
    chunk_length: int | None = field(default=None, metadata=_told("Rows per chunk; by default chosen from a row's bytes."))
    stall_seconds: float = field(default=Deadlines.stall, metadata=_told('Give up when nothing was confirmed for so many seconds.'))
    workers: int | None = field(default=None, metadata=_told('Processes that do the work, each on a part of the source; with ray, tasks at a time.'))
    ray: str | None = field(default=None, metadata=_told('Address of a Ray cluster that does the work, or "auto" for the one that this machine is part of.'))
    on_progress: Callable[[Progress], object] = field(default=unheard, compare=False)
    @cached_property outputs(self) -> tuple[Output, ...]
    @property tables(self) -> tuple[str, ...]
    @property is_divided(self) -> bool
    @property conventions(self) -> Conventions
    @property chosen_transform(self) -> Transform
    @property data_label(self) -> str
    @property encoded_paths(self) -> tuple[str, ...]
    check_files(self) -> None
class PushPlan()
    source: Source
    options: PushOptions
    tuning: Tuning
    info: ServerInfo
    step_spec: Nest
    filled: tuple[str, ...]
    tables: tuple[TablePlan, ...]
    metadata: Mapping[str, ArraySpec] = field(default_factory=dict)
    is_part: bool = False
    @property episodes(self) -> int | None
    @property view(self) -> str
    @property identity(self) -> str
    @property not_in_items(self) -> dict[str, tuple[str, ...]]
    @property notices(self) -> tuple[Remark, ...]
    telling(self, on_progress: Callable[[Progress], object]) -> PushPlan
    as_dict(self) -> dict[str, Any]
class PushReport()
    source: str
    tables: tuple[str, ...]
    view: str
    episodes_read: int = 0
    steps_read: int = 0
    episodes_pushed: int = 0
    steps_pushed: int = 0
    items_confirmed: int = 0
    rejected: Mapping[str, int] = field(default_factory=dict)
    steps_rejected: int = 0
    advice: Mapping[str, int] = field(default_factory=dict)
    repaired: Mapping[str, int] = field(default_factory=dict)
    ends_mended: int = 0
    notices: tuple[Remark, ...] = ()
    filled: tuple[str, ...] = ()
    episodes_resumed: int = 0
    episodes_duplicate: int = 0
    bytes: int = 0
    seconds: float = 0.0
    reconnects: int = 0
    items_made: Mapping[str, int] = field(default_factory=dict)
    without_items: Mapping[str, int] = field(default_factory=dict)
    left_over: Mapping[str, int] = field(default_factory=dict)
    not_in_items: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    items_new: int | None = None
    items_taken_out: int = 0
    episodes_unread: int | None = None
    stopped: str = ''
    transform: Mapping[str, Any] = field(default_factory=dict)
    workers: int = 0
    parts_again: int = 0
    ends_found_late: int = 0
    episodes_left_out: int = 0
    items_moved: int = 0
    servers: Mapping[str, PushReport] = field(default_factory=dict)
    @property episodes_rejected(self) -> int
    @property episodes_unconfirmed(self) -> int
    @property items_per_second(self) -> float
    as_dict(self) -> dict[str, Any]
class Rlds2ReverbError(Exception)
    report: PushReport | None = None
class SampleOptions()
    batch_size: int = 256
    streams: int = 1
    prefetch: int | None = None
    samples: int | None = None
    epochs: int | None = None
    drop_last: bool = False
    timeout_seconds: float | None = GIVE_UP_SECONDS
    end_after_seconds: float | None = None
    reconnect_seconds: float = Deadlines.reconnect
    ragged: str = LIST
    spec: Nest | None = None
    decode: bool = True
    arena_bytes: int = 256 << 20
    pad_to: int | None = None
    slices: SliceSpec | None = None
    view: ViewSpec | View | str | Mapping[str, Any] | None = None
    weights: str | None = None
    beta: Changing | None = None
    min_priority: Changing | None = None
    on_wait: Callable[[Reason], object] | None = field(default=None, compare=False)
    @property cut(self) -> SliceSpec | ViewSpec | None
    in_samples(self, table: TableInfo) -> SampleOptions
    @property request_size(self) -> int
    prefetch_of(self, table: TableInfo) -> int
class Sampler(BatchIterator)
    __init__(self, transport: Transport, info: ServerInfo, table: TableInfo, options: SampleOptions) -> None
    @property received(self) -> int
    @property reconnects(self) -> int
    @property restarts(self) -> int
    @property lost_at_most(self) -> int
    @property is_closed(self) -> bool
    allow(self, more: int) -> None
    next_batch(self) -> Batch | None
    stop(self) -> None
    drain(self, quiet_seconds: float=1.0) -> Iterator[Batch]
    close(self) -> None
class SliceSpec()
    length: int
    per_episode: int = 1
    strict: bool = True
    by: str = TRAJECTORY
    every: float | None = None
    fill: str = ZERO
    seed: int = 0
class Target()
    client: Client
    output: Output
    allow_other_views: bool = False
    get_table_signature(self) -> Nest | None
class Transform()
    select: Sequence[str] = ()
    drop: Sequence[str] = ()
    action: str = ''
    resize: Mapping[str, str] = field(default_factory=dict)
    rename: Mapping[str, str] = field(default_factory=dict)
    reward_last: str = AS_RECORDED
    @cached_property parts(self) -> tuple[str, ...]
    @cached_property sizes(self) -> Mapping[str, Size]
    @property changes_columns(self) -> bool
    @property label(self) -> str
    with_conventions(self, conventions: Conventions) -> Conventions
    as_dict(self) -> dict[str, Any]
    lines(self) -> dict[str, str]
class ViewSpec()
    view: View | str | Mapping[str, Any]
    per_episode: int | None = None
    seed: int = 0
    @staticmethod of(given: ViewSpec | View | str | Mapping[str, Any]) -> ViewSpec
class WriteOptions(PushOptions)
    allow_eviction: bool = True
    name: str | None = None
    max_steps: int | None = None
    most_episode_bytes: int = 1 << 30
    most_waiting_bytes: int = 64 << 20
    spec: Nest | None = field(default=None, compare=False)
def connect(address: str | list[str] | tuple[str, ...], credentials: Any=None, metadata: Sequence[tuple[str, str]]=(), timeout_seconds: float=Deadlines.call, wait_seconds: float=0.0, allow_missing: bool=False) -> Client | ClientGroup
def convert(source: Any, destination: str | Destination, **options: Any) -> ConvertReport
def convert_rlds_to_trajectories(rlds_data: RldsData, policy_info_fn: PolicyInfoFn=None, *, batch_size: int | None=None) -> tf.data.Dataset
def create_trajectory_data_spec(rlds_data: RldsData, policy_info_fn: PolicyInfoFn=None) -> trajectory.Trajectory
def find_problems(episode: Episode, columns: Columns | None=None, conventions: Conventions=Conventions()) -> list[Problem]
def inspect(source: Any, view: ViewLike | Mapping[str, ViewLike]='two_step', limit: int | None=None, transform: TransformLike=(), encoded: str | Sequence[str]=(), **conventions: str) -> Inspection
def load(source: str | Source | Sequence[Episode] | Any) -> Any
def local(source: Any, view: ViewLike='two_step', batch_size: int=LocalOptions.batch_size, **options: Any) -> Local
def mix(parts: Mapping[Any, float] | Sequence[tuple[Any, float]], batch_size: int=MixOptions.batch_size, **options: Any) -> Mix
def open_source(source: str | Source | Sequence[Episode] | Any) -> Source
def push_rlds_to_reverb(rlds_data: RldsData, reverb_observer: Observer, policy_info_fn: PolicyInfoFn=None) -> int
"""


def home(name: str) -> Path:
    """The file in which an exported name is defined."""
    path = ROOT / rlds2reverb._HOMES[name].replace(".", "/")
    files = [path.with_suffix(".py")] if path.with_suffix(".py").exists() else sorted(path.glob("*.py"))
    (found,) = [file for file in files if any(node.name == name for node in definitions(parsed(file)))]
    return found


def parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"), str(file))


def definitions(node: ast.Module | ast.ClassDef) -> list[Definition]:
    found = [child for child in node.body if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))]
    return [child for child in found if "overload" not in map(ast.unparse, child.decorator_list)]


def signature(function: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    returns = "" if function.returns is None else f" -> {ast.unparse(function.returns)}"
    return f"({ast.unparse(function.args)}){returns}"


def is_public(name: str) -> bool:
    return not name.startswith("_") or name in ("__init__", "__len__", "__enter__", "__exit__")


def surface(node: Definition) -> Iterator[str]:
    """One line for a function; for a class, one for its head, each field and each public method."""
    if not isinstance(node, ast.ClassDef):
        yield f"def {node.name}{signature(node)}"
        return
    yield f"class {node.name}({', '.join(ast.unparse(base) for base in node.bases)})"
    for child in node.body:
        if isinstance(child, ast.AnnAssign) and is_public(ast.unparse(child.target)):
            yield f"    {ast.unparse(child)}"
        elif isinstance(child, ast.FunctionDef) and is_public(child.name):
            marks = "".join(f"@{ast.unparse(mark)} " for mark in child.decorator_list)
            yield f"    {marks}{child.name}{signature(child)}"


def whole_surface() -> list[str]:
    lines: list[str] = []
    for name in rlds2reverb.__all__:
        (node,) = [node for node in definitions(parsed(home(name))) if node.name == name]
        lines += surface(node)
    return lines


def test_names_signatures_and_fields_are_the_pinned_ones() -> None:
    assert whole_surface() == SURFACE.strip().splitlines()


def test_the_exports_are_sorted_and_each_has_its_home() -> None:
    assert rlds2reverb.__all__ == sorted(rlds2reverb.__all__)
    assert sorted(rlds2reverb._HOMES) == rlds2reverb.__all__
    assert set(rlds2reverb.__all__) <= set(dir(rlds2reverb))


@pytest.mark.parametrize("name", [name for name, module in rlds2reverb._HOMES.items() if module != "tf_agents"])
def test_every_export_is_what_its_home_defines(name: str) -> None:
    module = importlib.import_module(f"rlds2reverb.{rlds2reverb._HOMES[name]}")
    assert getattr(rlds2reverb, name) is getattr(module, name)


def test_what_is_not_exported_is_not_there() -> None:
    with pytest.raises(AttributeError, match="module 'rlds2reverb' has no attribute 'nonsense'"):
        rlds2reverb.nonsense  # type: ignore[attr-defined]


def undocumented(file: Path) -> Iterator[str]:
    """Public modules, classes, functions and methods without a docstring."""

    def visit(node: ast.Module | ast.ClassDef, where: str) -> Iterator[str]:
        for child in definitions(node):
            name = f"{where}.{child.name}" if where else child.name
            if child.name.startswith("_"):
                continue
            if not ast.get_docstring(child):
                yield f"{file.name}: {name}"
            if isinstance(child, ast.ClassDef):
                yield from visit(child, name)

    tree = parsed(file)
    if not ast.get_docstring(tree) and tree.body:
        yield f"{file.name}: the module"
    yield from visit(tree, "")


@pytest.mark.parametrize("folder", [ROOT, SERVER], ids=lambda folder: folder.name)
def test_everything_public_has_a_docstring(folder: Path) -> None:
    files = sorted(folder.rglob("*.py"))
    if folder == SERVER and not files:
        pytest.skip("not a checkout")
    assert files
    assert [line for file in files for line in undocumented(file)] == []
