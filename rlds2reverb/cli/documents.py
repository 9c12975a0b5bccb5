"""What commands print with --json: one class for each object of a document, from which its JSON Schema and its reference in the docs are made.

A report of the library is printed as its dataclass has it, with some of its properties.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from typing import Annotated, Any, Literal, get_type_hints

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from rlds2reverb.conversion.report import ConvertReport
from rlds2reverb.episode import Notice
from rlds2reverb.inspection.statistics import Ends
from rlds2reverb.push.report import PushReport

Count = Annotated[int, Meta(ge=0)]
Spec = dict[str, str]
"""Path of a column -> its dtype and shape, such as "float32[?, 4]"; ? is any number of rows."""

_PROPERTIES: Mapping[type, tuple[str, ...]] = {
    PushReport: ("episodes_unconfirmed", "items_per_second"),
    ConvertReport: ("episodes_rejected",),
    Ends: ("style",),
}
"""Class that is printed as it is -> what of its properties is printed beside its fields."""

_STOPPED = (PushReport, ConvertReport)
"""Reports that have an `error` where they are of something that was stopped."""

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_REFERENCE = "#/$defs/{name}"


class Document(Struct, forbid_unknown_fields=True):
    """An object of a document."""


class Error(Document):
    """What went wrong.

    Attributes:
      kind: whose fault it is, one for each exit code.
      type: class of the error, such as ServerUnreachable.
      message: what is said on stderr: where, what was expected, what came, how to go on.
      exit_code: what the program ends with.
      where: episode, table or file that it is about; null where only the message says so.
      problems: every problem of the episode, or difference of the signature, where there are several.
      retryable: whether the same call may succeed later; null where nobody can say.
    """

    kind: Literal["data", "usage", "source", "table", "server", "file", "bug", "interrupted", "other"]
    type: str
    message: str
    exit_code: Annotated[int, Meta(ge=1)]
    where: str | None
    problems: list[str]
    retryable: bool | None


class Failed(Document):
    """What stands on stdout when a command fails before it has anything to tell.

    Attributes:
      error: what went wrong.
    """

    error: Error


class Transform(Document):
    """What is done to the columns first, those operations that do something.

    Attributes:
      action: columns that the action is made of, in their order.
      select: columns that stay.
      drop: columns that go.
      resize: image column -> height and width.
      rename: path of a column -> its new path.
      reward_last: what becomes of rewards.
    """

    action: list[str] | UnsetType = UNSET
    select: list[str] | UnsetType = UNSET
    drop: list[str] | UnsetType = UNSET
    resize: dict[str, list[Count]] | UnsetType = UNSET
    rename: Spec | UnsetType = UNSET
    reward_last: str | UnsetType = UNSET


class TablePlan(Document):
    """What a push finds in a table and would put there.

    Attributes:
      view: how episodes become its items.
      made_for: the view that the table's signature says it is for; null where it does not say.
      signature: of the items: column -> dtype and shape.
      size: items in it now.
      max_size: items that it holds at most.
      free: places that are left.
      waits_when_full: it evicts nothing: inserts wait for samples.
      not_in_items: step columns that no item holds.
      least_items: items that the push makes for it, at least; those that it holds already count.
      most_items: the same, at most; null where only reading tells.
      fits: true when no item is refused for lack of room, as the tables are now; null where only the push finds out.
    """

    view: str
    made_for: str | None
    signature: Spec
    size: Count
    max_size: Count
    free: Count
    waits_when_full: bool
    not_in_items: list[str]
    least_items: Count
    most_items: Count | None
    fits: bool | None


class Plan(Document):
    """With --dry-run: what a push would do.

    Attributes:
      source: name of the dataset.
      episodes: that will be read; null where that is not known.
      transform: what is done to the columns first.
      filled: step fields that the dataset lacks and that are filled.
      notices: what the dataset tells of itself as a whole.
      tables: table -> what is found there.
      servers: of several servers, address -> tables.
      missing: of several servers, those that cannot be reached.
    """

    source: str
    episodes: Count | None
    transform: Transform
    filled: list[str]
    notices: list[Notice]
    tables: dict[str, TablePlan]
    servers: dict[str, dict[str, TablePlan]] | UnsetType = UNSET
    missing: list[str] | UnsetType = UNSET


class Statistics(Document):
    """Of some numbers.

    Attributes:
      min, median, mean, max: over those that are finite; null where there are none.
    """

    min: float | None
    median: float | None
    mean: float | None
    max: float | None


class Returns(Statistics):
    """Sums of the rewards of episodes.

    Attributes:
      not_finite: returns that are NaN or infinite, and left out.
    """

    not_finite: Count


class Span(Document):
    """What the values of a column span.

    Attributes:
      min, max, mean: over those that are finite; null where there are none.
      not_finite: values that are NaN or infinite, and left out.
    """

    min: float | None
    max: float | None
    mean: float | None
    not_finite: Count


class ImageColumn(Document):
    """A column of images.

    Attributes:
      image: kind, size and channels.
      encoded: as the bytes of files.
      encoded_bytes: mean bytes of a step as files.
      decoded_bytes: mean bytes of a step once decoded; null where that is not known.
      measured_steps: of how many steps.
      recorded: the dataset's own path of it, which --encoded takes.
    """

    image: str
    encoded: bool
    encoded_bytes: Count
    decoded_bytes: Count | None
    measured_steps: Count
    recorded: str


class Example(Document):
    """One problem of one episode.

    Attributes:
      episode: its id.
      episode_id: what the dataset itself calls it.
      path: column, "" for none.
      detail: what was expected and what came.
    """

    episode: str
    episode_id: str | None
    path: str
    detail: str


class Problem(Document):
    """All problems of one code.

    Attributes:
      episodes: episodes that have it.
      problems: problems of this code; an episode may have several.
      meaning: what the code means.
      advice: the data can be used, and a learner may misread them.
      examples: the first ones.
    """

    episodes: Count
    problems: Count
    meaning: str
    advice: bool
    examples: list[Example]


class Inspected(Document):
    """What is in a dataset.

    Attributes:
      source: name of the dataset.
      episodes: how many were read.
      steps: their steps.
      step_bytes: bytes of one step, text not counted.
      transform: what is done to the columns first.
      left_out: recorded columns that the transform leaves out.
      step_spec: of a step as recorded, or as the transform makes it: column -> dtype and shape.
      images: image columns.
      filled: step fields that the dataset lacks and that a push would fill.
      episode_length: steps of an episode; null without episodes.
      return: sum of the rewards of an episode; null where no episode has one.
      ranges: path of a column -> what its values span.
      ends: how episodes end.
      problems: code -> what was found.
      notices: what was found of the dataset as a whole.
    """

    source: str
    episodes: Count
    steps: Count
    step_bytes: Count
    transform: Transform
    left_out: list[str]
    step_spec: Spec
    images: dict[str, ImageColumn]
    filled: list[str]
    episode_length: Statistics | None
    returns: Returns | None = msgspec.field(name="return")
    ranges: dict[str, Span]
    ends: Ends
    problems: dict[str, Problem]
    notices: list[Notice]


class Output(Document):
    """What a view makes of a dataset, and what its table needs.

    Attributes:
      view: how episodes become items.
      items: items that the valid episodes make.
      without_items: valid episodes that make none.
      left_over: steps at the end of a stream that no item holds.
      by_priority: items have priorities of their own.
      not_in_items: step columns that no item holds.
      trajectory_data_spec: what the table must have as its signature: column -> dtype and shape.
    """

    view: str
    items: Count
    without_items: Count
    left_over: Count
    by_priority: bool
    not_in_items: list[str]
    trajectory_data_spec: Spec


class OneTable(Inspected):
    """Without --into, or with one: what the table needs stands beside the rest, as in `Output`.

    Attributes:
      view: how episodes become items.
      items: items that the valid episodes make.
      without_items: valid episodes that make none.
      left_over: steps at the end of a stream that no item holds.
      by_priority: items have priorities of their own.
      not_in_items: step columns that no item holds.
      trajectory_data_spec: what the table must have as its signature: column -> dtype and shape.
    """

    view: str
    items: Count
    without_items: Count
    left_over: Count
    by_priority: bool
    not_in_items: list[str]
    trajectory_data_spec: Spec


class SeveralTables(Inspected):
    """With several --into.

    Attributes:
      tables: table -> what its view makes, and what it needs.
    """

    tables: dict[str, Output]


class Findings(Document):
    """What was found.

    Attributes:
      episodes: how many were checked.
      valid: none of the problems rejects an episode; the exit code is 0.
      problems: code -> what was found.
      notices: what was found of the dataset as a whole.
    """

    episodes: Count
    valid: bool
    problems: dict[str, Problem]
    notices: list[Notice]


class RateLimiter(Document):
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


class Table(Document):
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
      servers: of several servers, address -> its part; the rest are sums.
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
    signature: Spec | None
    view: str | None
    servers: dict[str, Table] | UnsetType = UNSET


class Column(Document):
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


class Sample(Document, kw_only=True):
    """A sample.

    Attributes:
      key: the item's key, an unsigned number of 64 bits, as text.
      priority: of the item.
      probability: with which it was chosen.
      table_size: items in the table at that moment.
      times_sampled: of the item, this time included.
      source: of several servers, the number of the one that it came from.
      columns: path of a column -> its values in brief.
    """

    key: Annotated[str, Meta(pattern="^[0-9]+$")]
    priority: float | None
    probability: float | None
    table_size: Count
    times_sampled: Count
    source: Count | UnsetType = UNSET
    columns: dict[str, Column]


class Fact(Document):
    """A line about an episode.

    Attributes:
      name: such as length, or problem and its code.
      text: in words.
    """

    name: str
    text: str


class Images(Document):
    """A column of images.

    Attributes:
      kind: dtype and shape, or the encoding.
      count: how many there are.
    """

    kind: str
    count: Count


class Curve(Document):
    """One number per step.

    Attributes:
      label: which dimension: "[3]", or "" where there is one.
      values: of every step; null for NaN and infinities.
    """

    label: str
    values: list[float | None]


class Numbers(Document):
    """A column of numbers.

    Attributes:
      kind: dtype and shape of a row.
      dimensions: numbers in a row.
      curves: of the first dimensions, 8 at most.
    """

    kind: str
    dimensions: Count
    curves: list[Curve]


class Episode(Document):
    """What is in an episode.

    Attributes:
      title: which episode it is.
      steps: its rows.
      facts: length, return, how it ends, and what is wrong with it.
      metadata: path -> value as text, shortened.
      images: path of a column of images -> what they are.
      numbers: path of a column of numbers -> its curves.
      texts: path of a column of text -> lines: at which steps it is what.
      flags: path of a flag -> at which steps it is true.
      others: path of any other column -> dtype and shape of a row.
      left_out: kind of column -> how many of them are only counted.
    """

    title: str
    steps: Count
    facts: list[Fact]
    metadata: dict[str, str]
    images: dict[str, Images]
    numbers: dict[str, Numbers]
    texts: dict[str, list[str]]
    flags: dict[str, str]
    others: dict[str, str]
    left_out: dict[str, Count]


class WrittenCheckpoint(Document):
    """A checkpoint that the server has written.

    Attributes:
      generation: its number.
      folder: where it is, on the server's machine.
      items: table -> items in it.
      bytes: size on disk.
      seconds: how long it took.
    """

    generation: Count
    folder: str
    items: dict[str, Count]
    bytes: Count
    seconds: float


class Demo(Document):
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
    sample: Spec


class NewestCheckpoint(Document):
    """The newest checkpoint of a server.

    Attributes:
      generation: its number.
      created: Unix time.
      bytes: on disk.
    """

    generation: Count
    created: float
    bytes: Count


class Service(Document):
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


class LiveTable(Document):
    """A table at a moment.

    Attributes:
      name: its name.
      size: items in it.
      max_size: items that it holds at most.
      inserts, samples: since the start, or since the table was emptied; they go on from a restored checkpoint.
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


class Server(Document):
    """A server at a moment.

    Attributes:
      name: its name or address.
      answers: whether it answered the last question.
      problem: why it does not answer; empty when it does.
      answered_at: when it answered last, Unix time.
      restarted_at: when another process was found to answer, Unix time.
      http: where its service was asked.
      http_problem: why its service does not answer.
      service: what its service tells; null where it is not known.
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


class Moment(Document):
    """All servers at a moment.

    Attributes:
      time: when, Unix time of this machine.
      servers: in the order of the command line.
    """

    time: float
    servers: list[Server]


DOCUMENTS: Mapping[str, tuple[str, tuple[Any, ...]]] = {
    "checkpoint": ("What the server has written.", (WrittenCheckpoint, Failed)),
    "convert": ("The account of the conversion.", (ConvertReport, Failed)),
    "demo": ("The accounts of the two pushes, and a sample.", (Demo, Failed)),
    "inspect": ("What is in a dataset, and which table it needs.", (OneTable, SeveralTables, Failed)),
    "mix": ("The account of the push of the mix; with --dry-run what it would do.", (PushReport, Plan, Failed)),
    "push": ("The account of the push; with --dry-run what it would do.", (PushReport, Plan, Failed)),
    "sample": ("One line of the output: a sample, or as the last line an error.", (Sample, Failed)),
    "show": ("One episode.", (Episode, Failed)),
    "status": ("Table -> its state.", (Failed, dict[str, Table])),
    "top": (
        "One moment of the servers: the whole document with --once, a line of the output without it.",
        (Moment, Failed),
    ),
    "validate": ("Problems of all episodes.", (Findings, Failed)),
}
"""Command -> what its document tells, and the types that it may have."""


def schema_of(command: str) -> dict[str, Any]:
    """The JSON Schema of what a command prints, with all that it refers to in it. It is closed: no object has a member that it does not name."""
    description, types = DOCUMENTS[command]
    forms, parts = msgspec.json.schema_components((*types, Transform, Error), ref_template=_REFERENCE)
    classes = {one.__name__: one for one in _classes(types)}
    definitions = {name: _closed(classes[name], part) for name, part in parts.items() if name in classes}
    return {
        "$schema": _DIALECT,
        "title": f"rlds2reverb {command} --json",
        "description": description,
        "anyOf": list(forms[: len(types)]),
        "$defs": definitions,
    }


def _classes(types: Any) -> Iterator[type]:
    """The classes of these types and of all their members."""
    seen: set[type] = set()
    waiting = list(types)
    while waiting:
        one = waiting.pop()
        if isinstance(one, type) and (issubclass(one, Struct) or is_dataclass(one)):
            if one in seen:
                continue
            seen.add(one)
            yield one
            waiting += get_type_hints(one).values()
            waiting += [Transform] if one in _STOPPED else []
            waiting += [Error] if one in _STOPPED else []
        else:
            waiting += getattr(one, "__args__", ())


def _closed(one: type, schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of a class, with the meanings of its members, and with what is printed of its properties."""
    members: dict[str, Any] = dict(schema["properties"])
    required = list(schema.get("required", ()))
    if is_dataclass(one):
        hints = {name: get_type_hints(getattr(one, name).fget)["return"] for name in _PROPERTIES.get(one, ())}
        members |= {name: msgspec.json.schema(hint) for name, hint in hints.items()}
        if "transform" in members:
            members["transform"] = {"$ref": _REFERENCE.format(name="Transform")}
        required = list(members)
        if one in _STOPPED:
            members["error"] = {"$ref": _REFERENCE.format(name="Error"), "description": "What stopped it; only then."}
    meanings = dict(_meanings(one))
    return {
        "type": "object",
        "description": " ".join(_told(one).partition("\n\n")[0].split()),
        "properties": {
            name: {
                **{key: value for key, value in member.items() if key != "default"},
                **({"description": meanings[name]} if name in meanings else {}),
            }
            for name, member in members.items()
        },
        "required": required,
        "additionalProperties": False,
    }


def _told(one: Any) -> str:
    return inspect.cleandoc(one.__doc__ or "")


def _meanings(one: type) -> Iterator[tuple[str, str]]:
    """Member -> what it means, as the docstrings of a class, its parents and its properties tell."""
    for parent in reversed(one.__mro__):
        _, _, listed = _told(parent).partition("Attributes:\n")
        for names, words in re.findall(r"^  (\w+(?:, \w+)*): (.*(?:\n    .*)*)", listed, re.MULTILINE):
            sentence = re.sub(r"\bNone\b", "null", " ".join(words.split()))
            yield from ((name, sentence[:1].upper() + sentence[1:]) for name in names.split(", "))
    for name in _PROPERTIES.get(one, ()):
        yield name, _told(getattr(one, name)).partition("\n")[0]
