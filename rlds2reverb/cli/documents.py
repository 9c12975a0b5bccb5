"""What commands print with --json: its JSON Schema and its reference in the docs are made from the classes that are printed.

Plans, reports and inspections are classes of the library (`rlds2reverb.plain`); the others, which only a command prints, are here.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints, is_typeddict

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from rlds2reverb.conversion.report import ConvertReport
from rlds2reverb.episode import Notice
from rlds2reverb.formats.transform import Transform
from rlds2reverb.inspection.inspection import Inspection, OneTable
from rlds2reverb.plain import Count, attributes
from rlds2reverb.prepare.findings import FoundProblem
from rlds2reverb.push.report import PushReport
from rlds2reverb.specs import ArraySpec, ImageSpec
from rlds2reverb.transport.http import NewestCheckpoint, NewestEntry, Upload

_DIALECT = "https://json-schema.org/draft/2020-12/schema"


class Error(Struct):
    """What went wrong.

    Attributes:
      kind: whose fault it is, one for each exit code.
      type: class of the error, such as ServerUnreachable.
      message: what is said on stderr: where, what was expected, what came, how to go on.
      exit_code: what the program ends with.
      where: episode, table or file that it is about; null where only the message says so.
      problems: every problem of the episode, or difference of the signature, where there are several.
      retryable: whether the same call may succeed later; null where that is not known.
    """

    kind: Literal["data", "usage", "source", "table", "server", "file", "bug", "interrupted", "other"]
    type: str
    message: str
    exit_code: Annotated[int, Meta(ge=1)]
    where: str | None
    problems: list[str]
    retryable: bool | None


class Failed(Struct):
    """What stands on stdout when a command fails before it has anything to tell.

    Attributes:
      error: what went wrong.
    """

    error: Error


class Findings(Struct):
    """What was found.

    Attributes:
      episodes: number that was checked.
      valid: none of the problems rejects an episode; the exit code is 0.
      problems: code -> what was found.
      notices: what was found of the dataset as a whole.
    """

    episodes: Count
    valid: bool
    problems: dict[str, FoundProblem]
    notices: tuple[Notice, ...]


class Datasets(Struct):
    """The datasets in a folder of a bucket.

    Attributes:
      datasets: the names by which they are opened.
    """

    datasets: list[str]


class Shard(Struct):
    """A shard of a dataset.

    Attributes:
      file: its path or URL.
      records: number of its records.
      index: the file that has their places.
    """

    file: str
    records: Count
    index: str


class Indexed(Struct):
    """What was indexed.

    Attributes:
      records: of all shards.
      shards: one after the other; those of several sources in their order.
    """

    records: Count
    shards: list[Shard]


class RateLimiter(Struct):
    """The rate limiter of a table.

    Attributes:
      samples_per_insert: what it aims at.
      min_size_to_sample: items that it wants before the first sample.
      min_diff: least of inserts × samples_per_insert - samples; null for no bound.
      max_diff: most of it; null for no bound.
      inserts, samples: counted so far.
      insert_state: what inserts wait for, in words.
      sample_state: what samples wait for, in words.
    """

    samples_per_insert: float | None
    min_size_to_sample: Count
    min_diff: float | None
    max_diff: float | None
    inserts: Count
    samples: Count
    insert_state: str
    sample_state: str


class Table(Struct):
    """A table.

    Attributes:
      size: items in it now.
      max_size: items that it holds at most.
      sampler: how items are chosen for samples.
      remover: how items are chosen to leave.
      max_times_sampled: samples of an item before it leaves; 0 or less for no limit.
      episodes: episodes that its items are of.
      deleted_episodes: episodes that have left, since the server started.
      unique_samples: items sampled for the first time, since the server started.
      rate_limiter: what it lets through.
      signature: column -> dtype and shape; null where the table takes anything.
      view: the view whose items the table is for; null where the signature does not say.
      servers: with more than one server, address -> its part; the rest are sums.
    """

    size: Count
    max_size: Count
    sampler: str
    remover: str
    max_times_sampled: int
    episodes: Count
    deleted_episodes: Count
    unique_samples: Count
    rate_limiter: RateLimiter
    signature: dict[str, str] | None
    view: str | None
    servers: dict[str, Table] | UnsetType = UNSET


class Column(Struct):
    """A column of a sample, in brief.

    Attributes:
      dtype: as signatures have it.
      shape: sizes.
      values: the first ones, texts shortened; null for NaN and infinities; of encoded images kind and size.
      min, max, mean: of numbers; null where none is finite.
      not_finite: of numbers, values that are NaN or infinite.
      bytes: of text and encoded images, of all of them.
    """

    dtype: str
    shape: list[Count]
    values: list[float | str | bool | None]
    min: float | UnsetType | None = UNSET
    max: float | UnsetType | None = UNSET
    mean: float | UnsetType | None = UNSET
    not_finite: Count | UnsetType = UNSET
    bytes: Count | UnsetType = UNSET


class Sample(Struct, kw_only=True):
    """A sample.

    Attributes:
      key: the item's key, an unsigned number of 64 bits, as text.
      priority: of the item.
      probability: with which it was chosen.
      table_size: items in the table at that moment.
      times_sampled: of the item, this time included.
      source: with more than one server, the number of the one that it came from.
      columns: path of a column -> its values in brief.
    """

    key: Annotated[str, Meta(pattern="^[0-9]+$")]
    priority: float | None
    probability: float | None
    table_size: Count
    times_sampled: Count
    source: Count | UnsetType = UNSET
    columns: dict[str, Column]


class Fact(Struct):
    """A line about an episode.

    Attributes:
      name: such as length, or problem and its code.
      text: in words.
    """

    name: str
    text: str


class Images(Struct):
    """A column of images.

    Attributes:
      kind: dtype and shape, or the encoding.
      count: number of images.
    """

    kind: str
    count: Count


class Curve(Struct):
    """One number per step.

    Attributes:
      label: which dimension: "[3]", or "" where there is one.
      values: of every step; null for NaN and infinities.
    """

    label: str
    values: list[float | None]


class Numbers(Struct):
    """A column of numbers.

    Attributes:
      kind: dtype and shape of a row.
      dimensions: numbers in a row.
      curves: of the first dimensions, 8 at most.
    """

    kind: str
    dimensions: Count
    curves: list[Curve]


class Episode(Struct):
    """What is in an episode.

    Attributes:
      title: which episode of the source it is, by its index.
      name: its id, and the dataset's own name of it.
      caption: the instruction of a robot's episode; empty without one.
      steps: its rows.
      facts: length, return, how it ends, and what is wrong with it.
      metadata: path -> value as text, shortened.
      images: path of a column of images -> what they are.
      numbers: path of a column of numbers -> its curves.
      texts: path of a column of text -> lines: at which steps it is what.
      flags: path of a flag -> at which steps it is true.
      others: path of any other column -> dtype and shape of a row.
      left_out: kind of column -> number of those that are only counted.
    """

    title: str
    name: str
    caption: str
    steps: Count
    facts: list[Fact]
    metadata: dict[str, str]
    images: dict[str, Images]
    numbers: dict[str, Numbers]
    texts: dict[str, list[str]]
    flags: dict[str, str]
    others: dict[str, str]
    left_out: dict[str, Count]


class Demo(Struct):
    """What the demo did.

    Attributes:
      push: of the first push.
      again: of the same push once more.
      table_size: items in the table after both.
      sample: path of a column -> dtype, shape and first values of one item.
    """

    push: PushReport
    again: PushReport
    table_size: Count
    sample: dict[str, str]


class Service(Struct):
    """The service around Reverb. Times are Unix times of its clock.

    Attributes:
      state: such as ready.
      problem: why Reverb does not answer it; empty otherwise.
      now: when it said so.
      started_at: when its process started.
      memory_bytes: resident memory; 0 where it cannot tell.
      checkpoint: the newest; null before the first.
      writing_since: since when a checkpoint is written; null otherwise.
      checkpoint_failures: since the last one that was written.
      checkpoint_problem: what is wrong with the newest attempt or the folder; empty otherwise.
      upload: what sends checkpoints to a bucket; null where none is configured.
      newest_entry: of its journal; null without one.
    """

    state: str
    problem: str
    now: float
    started_at: float
    memory_bytes: Count
    checkpoint: NewestCheckpoint | None
    writing_since: float | None
    checkpoint_failures: Count
    checkpoint_problem: str
    upload: Upload | None
    newest_entry: NewestEntry | None


class LiveTable(Struct):
    """A table at a moment.

    Attributes:
      name: its name.
      size: items in it.
      max_size: items that it holds at most.
      inserts, samples: since the start, or since the table was emptied; they continue from a restored checkpoint.
      inserts_per_second, samples_per_second: null before the second answer, and after a restart or a reset of the table.
      rate_seconds: over how long rates were measured.
      samples_per_insert: so far; null before the first insert.
      samples_per_insert_wanted: by the rate limiter; null for any.
      insert_state: what inserts wait for, in words.
      sample_state: what samples wait for, in words.
      inserts_blocked: whether inserts wait for the rate limiter.
      samples_blocked: whether samples wait for the rate limiter.
    """

    name: str
    size: Count
    max_size: Count
    inserts: Count
    samples: Count
    inserts_per_second: float | None
    samples_per_second: float | None
    rate_seconds: float | None
    samples_per_insert: float | None
    samples_per_insert_wanted: float | None
    insert_state: str
    sample_state: str
    inserts_blocked: bool
    samples_blocked: bool


class Server(Struct):
    """A server at a moment.

    Attributes:
      name: its name or address.
      answers: whether it answered the last question.
      problem: why it does not answer; empty when it does.
      answered_at: when it answered last, Unix time.
      restarted_at: when another process was found to answer, Unix time.
      http: where its service was asked.
      http_problem: why its service does not answer.
      service: the status of its service; null where it is not known.
      tables: by name.
    """

    name: str
    answers: bool
    problem: str | None
    answered_at: float | None
    restarted_at: float | None
    http: str | None
    http_problem: str | None
    service: Service | None
    tables: list[LiveTable]


class Moment(Struct):
    """All servers at a moment.

    Attributes:
      time: when, Unix time of this machine.
      servers: in the order of the command line.
    """

    time: float
    servers: list[Server]


_Made = TypeVar("_Made", bound=Struct)


def document_of(kind: type[_Made], of: object, **own: Any) -> _Made:
    """A document whose members are attributes of an object of the library, but for its own."""
    return kind(**{name: getattr(of, name) for name in kind.__struct_fields__ if name not in own}, **own)


DOCUMENTS: Mapping[str, tuple[str, tuple[Any, ...]]] = {
    "checkpoint": ("What the server has written.", ("rlds2reverb.transport.http:WrittenCheckpoint", Failed)),
    "convert": ("The account of the conversion.", (ConvertReport, Failed)),
    "delete": ("What was deleted; with --dry-run what would be.", ("rlds2reverb.push.deleting:DeleteReport", Failed)),
    "demo": ("The accounts of the two pushes, and a sample.", (Demo, Failed)),
    "index": ("The indexes of the shards.", (Indexed, Failed)),
    "inspect": (
        "What is in a dataset, and which table it needs; with --against how two datasets differ. Of a folder in a bucket, and of Minari's place of "
        "datasets, which there are.",
        (
            OneTable,
            Inspection,
            "rlds2reverb.look.comparison:Comparison",
            Datasets,
            "rlds2reverb.formats.minari.listing:MinariList",
            Failed,
        ),
    ),
    "journal": ("Who has done what to the tables.", ("rlds2reverb.cli.journal:Journal", Failed)),
    "migrate": (
        "The account of the migration; with --dry-run what it would do.",
        ("rlds2reverb.stored.migration:MigrateReport", Failed),
    ),
    "mix": (
        "The account of the push of the mix; with --dry-run what it would do.",
        (PushReport, "rlds2reverb.push.plan:Plan", Failed),
    ),
    "push": (
        "The account of the push; with --dry-run what it would do.",
        (PushReport, "rlds2reverb.push.plan:Plan", Failed),
    ),
    "record": (
        "The account of the dataset that was written, or of the push into tables.",
        (ConvertReport, PushReport, Failed),
    ),
    "sample": ("One line of the output: a sample, or as the last line an error.", (Sample, Failed)),
    "show": ("One episode.", (Episode, Failed)),
    "status": (
        "Table -> its state; with --checkpoints the kept checkpoints.",
        (Failed, "rlds2reverb.transport.http:KeptCheckpoints", dict[str, Table]),
    ),
    "top": (
        "One moment of the servers: the whole document with --once, a line of the output without it.",
        (Moment, Failed),
    ),
    "validate": ("Problems of all episodes.", (Findings, Failed)),
}
"""Command -> what its document describes, and the types that it may have; "module:name" where only the command loads the module."""


def schema_of(command: str) -> dict[str, Any]:
    """The JSON Schema of what a command prints. It is closed: no object has a member that it does not name."""
    description, types = DOCUMENTS[command]
    definitions: dict[str, Any] = {}
    forms = []
    for kind in types:
        if isinstance(kind, str):
            module, _, name = kind.partition(":")
            kind = getattr(importlib.import_module(module), name)
        forms.append(_schema(kind, definitions))
    return {
        "$schema": _DIALECT,
        "title": f"rlds2reverb {command} --json",
        "description": description,
        "anyOf": forms,
        "$defs": definitions,
    }


def _schema(hint: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    """The schema of a type; those of classes go into `definitions`."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint == Count:
        return {"type": "integer", "minimum": 0}
    if hint in (ArraySpec, ImageSpec):
        return {"type": "string"}
    if origin in (Union, UnionType):
        forms = [_schema(argument, definitions) for argument in arguments if argument is not UnsetType]
        return {"anyOf": forms} if len(forms) > 1 else forms[0]
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {"type": "object", "additionalProperties": _schema(arguments[1], definitions)}
    if origin in (list, tuple, Sequence):
        return {"type": "array", "items": _schema(arguments[0], definitions)}
    if is_dataclass(hint) or is_typeddict(hint) or (isinstance(hint, type) and issubclass(hint, Struct)):
        if hint.__name__ not in definitions:
            definitions[hint.__name__] = {}  # it may have members of its own class
            definitions[hint.__name__] = _object(hint, definitions)
        return {"$ref": f"#/$defs/{hint.__name__}"}
    return msgspec.json.schema(hint)


_ACCOUNTS = ("PushReport", "ConvertReport", "MinariList")
"""What is printed although the command fails, of what there was until then."""


def _object(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    """The schema of a class, with the meanings of its members."""
    properties: dict[str, Any] = {}
    required = []
    for name, hint, meaning in _members(kind):
        schema = _schema(Transform if name == "transform" else hint, definitions)  # reports hold it as plain values
        properties[name] = {**schema, **({"description": meaning} if meaning else {})}
        if UnsetType not in get_args(hint) and name in getattr(kind, "__required_keys__", (name,)):
            required.append(name)
    if kind.__name__ in _ACCOUNTS:
        properties["error"] = {**_schema(Error, definitions), "description": "What stopped it; only then."}
    return {
        "type": "object",
        "description": " ".join(_docstring(kind).partition("\n\n")[0].split()),
        "properties": properties,
        "required": [] if kind is Transform else required,  # operations that do nothing are left out
        "additionalProperties": False,
    }


def _members(kind: Any) -> Iterator[tuple[str, Any, str]]:
    """Name, type and meaning of what is printed of a class, in its order; fields and properties have their own docstrings."""
    hints = get_type_hints(kind, include_extras=True)
    for name, place in (attributes(kind) if is_dataclass(kind) else dict(zip(hints, hints))).items():
        hint: Any = kind
        meaning = ""
        for step in place.split("."):
            attribute = getattr(hint, step, None)
            if isinstance(attribute, property):
                meaning = _docstring(attribute).partition("\n")[0]
                hint = get_type_hints(attribute.fget, include_extras=True)["return"]
            else:
                meaning = dict(_meanings(hint)).get(step, "")
                hint = get_type_hints(hint, include_extras=True)[step]
        meaning = re.sub(r"\bNone\b", "null", meaning)
        yield name, hint, meaning[:1].upper() + meaning[1:]


def _meanings(kind: Any) -> Iterator[tuple[str, str]]:
    """Field -> what it means, as the docstrings of a class and its parents tell."""
    for parent in reversed(kind.__mro__):
        _, _, listed = _docstring(parent).partition("Attributes:\n")
        for names, words in re.findall(r"^  (\w+(?:, \w+)*): (.*(?:\n    .*)*)", listed, re.MULTILINE):
            yield from ((name, " ".join(words.split())) for name in names.split(", "))


def _docstring(kind: Any) -> str:
    return inspect.cleandoc(kind.__doc__ or "")
