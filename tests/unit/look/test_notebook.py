"""The quickstart is a valid notebook, runs from top to bottom with Reverb and without, and shows what it has stored."""

from __future__ import annotations

import base64
import re
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from hypothesis import given

import rlds2reverb
from rlds2reverb import cli
from rlds2reverb.client import Client
from rlds2reverb.conversion.report import ConvertReport, Lost
from rlds2reverb.encoding import png_files
from rlds2reverb.episode import Array, Episode, Notice
from rlds2reverb.images import image_size
from rlds2reverb.inspection.inspection import Inspection
from rlds2reverb.inspection.statistics import Range
from rlds2reverb.learner.batch import Batch, BatchInfo
from rlds2reverb.look import notebook
from rlds2reverb.look.notebook import (
    FRAMES,
    MOST_STRIPS,
    PIXELS,
    batch_html,
    convert_html,
    episode_html,
    findings_html,
    info_html,
    inspection_html,
    is_images,
    notices,
    plan_html,
    push_html,
    server_html,
    strips,
    table_html,
    table_plan_html,
    values_of,
)
from rlds2reverb.prepare.findings import Findings
from rlds2reverb.prepare.problems import Problem
from rlds2reverb.push.report import PushReport
from rlds2reverb.specs import ArraySpec, named_tuple_type
from rlds2reverb.strict_yaml import parse
from rlds2reverb.testing import MemoryServer, MemoryTransport, table_info
from rlds2reverb.wire.messages import ServerInfo
from tests.support.look.held import images
from tests.support.look.notebooks import ADDRESS, HAS_REVERB, QUICKSTART, runner, stored
from tests.support.look.pages import Page
from tests.support.strategies import array, dtypes, episode, shapes
from tests.unit.look.test_notebook_showing import MOST

SHOWN = {"choose", "inspect", "episode", "serve", "plan", "push-run", "push-again", "sample-pairs", "sample-returns"}
"""Cells that show something."""

CODE = {"cell_type", "execution_count", "id", "metadata", "outputs", "source"}
MARKDOWN = {"cell_type", "id", "metadata", "source"}
OUTPUTS = {
    "stream": {"name", "output_type", "text"},
    "execute_result": {"data", "execution_count", "metadata", "output_type"},
}
"""Kinds of cells and outputs in nbformat 4.5 -> the fields that they must have; others are not allowed."""


def cells(kind: str) -> list[Any]:
    return [cell for cell in stored()["cells"] if cell["cell_type"] == kind]


def code() -> str:
    return "\n".join("".join(cell["source"]) for cell in cells("code"))


def executed(*changes: tuple[str, str]) -> dict[str, list[str]]:
    """Cell -> what it shows in a run with these changes of its code."""
    assert all(code().count(old) == 1 for old, _ in changes)
    found: dict[str, list[str]] = runner().shown_by(runner().executed(stored(), dict(changes)))
    return found


def test_it_is_a_notebook() -> None:
    notebook = stored()
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert set(notebook) == {"cells", "metadata", "nbformat", "nbformat_minor"}
    assert notebook["metadata"]["kernelspec"] == {"display_name": "Python 3", "language": "python", "name": "python3"}
    ids = [cell["id"] for cell in notebook["cells"]]
    assert len(set(ids)) == len(ids)
    assert all(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", element_id) for element_id in ids)
    assert QUICKSTART.read_text(encoding="utf-8") == runner().text_of(notebook)


def test_its_cells_and_outputs_have_the_fields_of_the_format() -> None:
    assert all(set(cell) == MARKDOWN for cell in cells("markdown"))
    assert [(set(cell), cell["execution_count"]) for cell in cells("code")] == [
        (CODE, count + 1) for count in range(len(cells("code")))
    ]
    outputs = [output for cell in cells("code") for output in cell["outputs"]]
    assert all(set(output) == OUTPUTS[output["output_type"]] for output in outputs)
    texts = [cell["source"] for cell in stored()["cells"]]
    texts += [text for output in outputs for text in [output.get("text"), *output.get("data", {}).values()] if text]
    assert all(line.endswith("\n") for text in texts for line in text[:-1])


def test_what_it_has_stored_is_whole_and_harmless() -> None:
    pages = [
        "".join(output["data"]["text/html"]) for cell in cells("code") for output in cell["outputs"] if "data" in output
    ]
    assert len(pages) == 7
    assert all(Page(html).text for html in pages)


def test_its_lines_are_short_enough_to_be_read_without_scrolling() -> None:
    assert [line for line in code().splitlines() if len(line) > 100] == []


def anchors(page: Path) -> set[str]:
    """What a page's headings are called in links."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_its_links_lead_somewhere() -> None:
    text = "\n".join("".join(cell["source"]) for cell in cells("markdown"))
    links = re.findall(r"\]\(([^)#]+)#?([^)]*)\)", text)
    assert len(links) > 3
    assert [name for name, _ in links if not (QUICKSTART.parent / name).exists()] == []
    assert [at for name, at in links if at and at not in anchors(QUICKSTART.parent / name)] == []


def test_without_reverb_a_server_in_memory_takes_its_place(capsys: pytest.CaptureFixture[str]) -> None:
    shown = executed((HAS_REVERB, "False"))
    assert {cell for cell, outputs in shown.items() if outputs} == SHOWN
    assert shown.pop("choose") == ["Reverb is not installed here: a server in memory takes its place.\n"]
    assert shown == {cell: outputs for cell, outputs in runner().shown_by(stored()).items() if cell != "choose"}, (
        "stale: run `make docs`"
    )
    assert capsys.readouterr() == ("", "")


@pytest.mark.full
def test_it_starts_a_server_of_its_own_and_shows_what_it_has_stored() -> None:
    assert executed() == runner().shown_by(stored()), "stale: run `make docs`"


@pytest.mark.full
def test_it_takes_a_server_that_runs_elsewhere(forks: Any) -> None:
    from replay_server import TableConfig

    views = {"replay": "two_step", "returns": "n_step:n=3"}
    needed = rlds2reverb.inspect("bundled:cartpole", views).outputs
    with forks.embedded([TableConfig(name, output.signature) for name, output in needed.items()]) as server:
        shown = executed((ADDRESS, f'ADDRESS = "{server.address}"'))
        assert shown["choose"] == ["This notebook uses the server at localhost:#\n"]
        assert shown["push-again"] == ["# new items\n"]
        with rlds2reverb.connect(server.address) as client:
            assert {name: table.current_size for name, table in client.tables().items()} == {
                "replay": 2931,
                "returns": 2931,
            }


def commands() -> list[list[str]]:
    text = "\n".join("".join(cell["source"]) for cell in cells("markdown"))
    return [shlex.split(line) for line in re.findall(r"^rlds2reverb (.+)$", text, re.MULTILINE)]


def test_the_commands_for_a_server_elsewhere_are_taken() -> None:
    inspect, serve = commands()
    assert inspect[-2:] == [">", "server.yaml"]
    assert serve == ["serve", "--config", "server.yaml"]
    command = cli.cli.get_command(click.Context(cli.cli), "inspect")
    assert command is not None
    given = command.make_context("inspect", inspect[1:-2]).params
    assert given["server_config"]
    assert dict(pair.split("=", 1) for pair in given["into"]) == {"replay": "two_step", "returns": "n_step:n=3"}


@pytest.mark.full
def test_the_config_for_a_server_elsewhere_has_both_tables(capsys: pytest.CaptureFixture[str]) -> None:
    inspect, _ = commands()
    cli.cli(inspect[:-2], standalone_mode=False)
    assert [table["name"] for table in parse(capsys.readouterr().out)["tables"]] == ["replay", "returns"]


# The judge itself: it finds what must not be there.


@pytest.mark.parametrize(
    "html",
    [
        "<div>",
        "<div><span></div></span>",
        "<script>alert(1)</script>",
        '<div onclick="x">a</div>',
        '<img src="http://example.com/a.png">',
        '<div style="background:#fff">a</div>',
        '<div style="border:0;color:red">a</div>',
        "<!-- a -->",
    ],
)
def test_it_refuses(html: str) -> None:
    with pytest.raises(AssertionError):
        Page(html)


def test_it_reads_text_rows_and_pictures() -> None:
    page = Page(
        '<div>a &lt;b&gt;<img src="data:image/png;base64,AAAA"><table><tr><th>n</th><td>1</td></tr></table></div>'
    )
    assert page.text == "a <b>n1"
    assert page.row("n") == "1"
    assert page.pictures == ["data:image/png;base64,AAAA"]


# A few words of any array, and never a pass over a large one.


def told(value: Any) -> str:
    return Page(values_of(value)).text


@given(dtypes(), shapes())
def test_every_dtype_that_is_stored_can_be_told(dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
    value = array(np.random.default_rng(0), dtype, shape)
    assert "cannot be shown" not in told(value)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.arange(6), "0, 1, 2, 3, ... (0 to 5)"),
        (np.array([np.nan, 1.0]), "nan, 1 (1 to 1) (1 value not finite)"),
        (np.zeros((0, 3)), "no values"),
        (b"text", '"text" (4 bytes)'),
        (3, "3"),
        (np.array([{}, 1], object), "objects that are no text: dict, int"),
        (None, "objects that are no text: NoneType"),
        (np.zeros(2, [("a", "f4"), ("b", "f4")]), "cannot be shown: TypeError"),
    ],
)
def test_a_few_words(value: Any, expected: str) -> None:
    assert told(value).startswith(expected)


def test_of_a_large_array_only_the_beginning_is_looked_at() -> None:
    assert told(np.broadcast_to(np.float32(1), (10**12, 3))) == "first 100,000 values: 1, 1, 1, 1, ... (1 to 1)"


def test_of_many_texts_only_the_first_ones_are_looked_at() -> None:
    texts = np.full(1_001, b"a", object)
    texts[-1] = object()
    assert told(texts).startswith('first 1,000 values: "a", "a", "a", "a", ... (1,000 bytes)')


def test_metadata_is_told_on_one_line_and_not_all_of_it() -> None:
    page = Page(episode_html(Episode({}, {f"name{number}": number for number in range(1000)}, id="e")))
    assert page.row("metadata").startswith("name0: 0; name1: 1; ")
    assert page.row("metadata").endswith("; and 980 more")


# What is told of a batch: its leaves as they are, whatever their structure.

INFO = BatchInfo(
    key=np.arange(4, dtype=np.uint64),
    probability=np.full(4, 0.25),
    table_size=np.full(4, 4),
    priority=np.ones(4),
    times_sampled=np.ones(4, np.int32),
)
LEAF = np.ones((4, 2), np.float32)


@pytest.mark.parametrize(
    ("data", "paths"),
    [
        ({"b": LEAF, "a": {"c": LEAF}}, ["a/c", "b"]),
        (named_tuple_type("Step", ("reward", "action"))(LEAF, LEAF), ["reward", "action"]),
        ([LEAF, LEAF], ["0", "1"]),
        (LEAF, [""]),
        ({}, []),
    ],
)
def test_leaves_have_their_paths(data: Any, paths: list[str]) -> None:
    page = Page(batch_html(Batch(data, INFO)))
    assert page.text.startswith("Batch 4 samples")
    assert [row[0] for row in page.cells if row[-1] == "1, 1, 1, 1, ... (1 to 1)"] == paths


def test_samples_that_differ_in_shape_are_one_column() -> None:
    data = {"a": [np.ones(2), np.ones(3), np.ones(2), np.ones(3)]}
    assert Page(batch_html(Batch(data, INFO))).row("a") == "4 arrays: float64[2], float64[3] | 1, 1 (1 to 1)"


def test_images_are_shown() -> None:
    assert len(Page(batch_html(Batch({"image": images(4)}, INFO))).pictures) == 4


def test_only_what_is_known_of_the_samples_is_told() -> None:
    page = Page(info_html(INFO._replace(masks={"a": np.ones((4, 3), bool)})))
    assert [row[0] for row in page.cells[1:]] == [
        "key",
        "probability",
        "table_size",
        "priority",
        "times_sampled",
        "masks a",
    ]


def test_one_sample_without_an_axis_is_shown() -> None:
    info = INFO._replace(**{name: getattr(INFO, name)[0] for name in BatchInfo._fields[:5]})
    page = Page(batch_html(Batch({"a": np.float32(3)}, info)))
    assert page.row("a") == "float32[] | 3"
    assert page.text.startswith("Batch 1 sample")


# What is told of pushes and conversions.


def names_of(html: str) -> list[str]:
    return [row[0] for row in Page(html).cells]


def test_a_push_without_incidents_is_told_in_a_few_lines() -> None:
    report = PushReport("data", ("replay",), "two_step", 3, 30, 3, 30, items_confirmed=27, items_new=27, seconds=1.0)
    assert names_of(push_html(report)) == ["source", "tables", "read", "pushed", "confirmed", "speed"]
    assert Page(push_html(report)).row("confirmed") == "27 items, 27 new"
    assert Page(push_html(report)).row("speed") == "27.0 items/s, 0.0 MB in 1.00 s"


def test_what_went_wrong_is_told() -> None:
    report = PushReport(
        "data", ("a", "b"), "two_step", 5, 50, 2, 20, rejected={"nan": 1}, stopped="the disk is full", reconnects=2
    )
    page = Page(push_html(report))
    assert "Stopped: the disk is full" in page.text
    assert [page.row(name) for name in ("rejected", "not stored", "reconnects")] == [
        "nan 1  (0 steps)",
        "2 episodes read and not confirmed, the rest of the source not read",
        "2",
    ]


def test_every_server_has_a_row() -> None:
    part = PushReport("data", ("a",), "two_step", stopped="no answer")
    page = Page(
        push_html(PushReport("data", ("a",), "two_step", servers={f"host{number}:1": part for number in range(100)}))
    )
    assert page.row("host0:1") == "0 episodes, 0 items  (missing: no answer)"
    assert "and 60 more servers" in page.text


def test_a_million_codes_are_cut_short() -> None:
    html = push_html(
        PushReport("data", ("a",), "two_step", rejected={f"code{number}": 1 for number in range(1_000_000)})
    )
    assert len(html) < MOST
    assert Page(html).row("rejected").endswith(", ...")


def test_a_conversion_tells_what_was_lost() -> None:
    report = ConvertReport(
        "data", "ted:/x", episodes_written=1, steps_written=3, verified=1, losses=(Lost("a", "no place", "path"),) * 30
    )
    page = Page(convert_html(report))
    assert page.row("written") == "1 episode, 3 steps"
    assert page.row("verified").startswith("1 episode, equal to the source")
    assert "lost: path: no place" in page.text
    assert page.text.endswith("and 10 more")


# What is told of an inspection.


def test_counts_columns_tables_and_problems_are_told() -> None:
    page = Page(inspection_html(rlds2reverb.inspect("bundled:cartpole", {"a": "two_step", "b": "episode"})))
    assert page.row("counts") == "25 episodes, 2,956 steps, 35 bytes per step, 103 kB in all"
    assert page.row("episode length") == "min 12  median 23  mean 118.2  max 501"
    assert page.row("ends").startswith("20 terminal, 5 truncated")
    assert "table a: 2,931 items of view two_step" in page.text
    assert "table b: 25 items of view episode" in page.text
    assert page.text.endswith("no problems")


def test_an_empty_dataset_has_no_lengths() -> None:
    page = Page(inspection_html(Inspection("nothing", {}, (), {})))
    assert page.row("counts").startswith("0 episodes")
    assert page.row("episode length") == "-"


def test_returns_that_are_not_finite_are_counted() -> None:
    one = Inspection("data", {}, (), {}, lengths=[1, 1], returns=[1.0, np.nan])
    assert Page(inspection_html(one)).row("return") == "min 1  median 1  mean 1  max 1  (left out: 1 not finite)"


@pytest.mark.parametrize(
    ("span", "told"),
    [(Range(), ""), (Range(0, 1, 3.0, 6), "0 to 1, mean 0.5"), (Range(not_finite=3), "3 not finite")],
)
def test_ranges(span: Range, told: str) -> None:
    one = Inspection("data", {"a": ArraySpec((), np.dtype(float))}, (), {}, ranges={"a": span})
    assert Page(inspection_html(one)).row("a") == f"float64[] | {told}"


def test_ten_thousand_columns_and_a_million_episodes_are_counted() -> None:
    spec = {f"column{number}": ArraySpec((2,), np.dtype(np.float32)) for number in range(10_000)}
    one = Inspection("data", spec, (), {}, lengths=[7] * 1_000_000, returns=[1.0] * 1_000_000)
    html = inspection_html(one)
    assert len(html) < MOST
    assert "and 9,960 more columns" in Page(html).text


def test_a_million_problems_are_counted_and_three_are_told() -> None:
    findings = Findings()
    bad = episode(np.random.default_rng(0), 3, episode_id="mine<b>")
    findings.add(bad, [Problem("nan", "reward", "row 3 is <NaN>")] * 1_000_000)
    page = Page(findings_html(findings))
    assert page.text.startswith("Findings 1,000,000 problems")
    assert page.text.count("mine<b>: reward: row 3 is <NaN>") == 3
    assert page.text.endswith("and 999,997 more")
    assert "problem nan: 1 episode a value is NaN" in page.text


def test_codes_that_nobody_knows_are_shown_all_the_same() -> None:
    findings = Findings()
    findings.episodes["new"] = findings.problems["new"] = 2
    assert "problem new: 2 episodes" in Page(findings_html(findings)).text


# What is told of tables: a server's, one by itself, and those of a plan.

SIGNATURE = {f"column{number}": ArraySpec((2,), np.dtype(np.float32)) for number in range(10_000)}


def planned(**options: Any) -> Any:
    needed = rlds2reverb.inspect("bundled:cartpole").outputs["replay"].signature
    with Client(MemoryTransport(MemoryServer(table_info("replay", max_size=4000, signature=needed)))) as client:
        return client.plan("bundled:cartpole", table="replay", **options)


def test_every_table_of_a_server_has_a_row_and_a_signature() -> None:
    tables = {
        "b": table_info("b", max_size=10),
        "a": table_info("a", max_size=20, signature={"x": ArraySpec((), np.dtype(bool))}),
    }
    page = Page(server_html(ServerInfo(1, tables)))
    assert [row[:2] for row in page.cells[:3]] == [
        ["table", "items"],
        ["a", "0 of 20, 0 episodes"],
        ["b", "0 of 10, 0 episodes"],
    ]
    assert page.row("x") == "bool[]"
    assert "table b has no signature: it takes anything" in page.text
    assert "inserts may go on" in page.row("a")


def test_a_server_without_tables_says_so() -> None:
    assert Page(server_html(ServerInfo(1, {}))).text.startswith("Reverb server 0 tables")


def test_ten_thousand_tables_of_ten_thousand_columns_are_counted() -> None:
    one = table_info("a", max_size=10, signature=SIGNATURE)
    html = server_html(ServerInfo(1, {f"t{number:05}": replace(one, name=f"t{number:05}") for number in range(10_000)}))
    assert len(html) < MOST
    assert "and 9,960 more tables" in Page(html).text
    assert "and 9,960 more columns" in Page(table_html(one)).text


def test_two_columns_of_one_name_are_said_and_the_rest_is_shown() -> None:
    leaf = ArraySpec((), np.dtype(bool))
    page = Page(table_html(table_info("a", max_size=10, signature={"x": {"y": leaf}, "x/y": leaf})))
    assert "cannot be shown: SpecError" in page.text
    assert page.row("items").startswith("0 of 10")


def test_a_plan_tells_the_room_of_its_tables() -> None:
    plan = planned()
    page = Page(plan_html(plan))
    assert page.text.startswith("Plan of a push bundled:cartpole")
    assert page.row("source") == "bundled:cartpole  (25 episodes)"
    assert page.row("replay") == "view two_step; makes 2,931 items; 0 of at most 4,000 items, so 4,000 more fit"
    assert page.text.endswith("Nothing has been sent.")
    assert "so 4,000 more fit" in Page(table_plan_html(plan.tables[0])).text


def test_a_plan_tells_its_transform() -> None:
    page = Page(plan_html(planned(transform="rename=observation:observation")))
    assert page.row("rename") == "observation -> observation"


def test_a_plan_for_several_servers_names_them() -> None:
    plan = planned()
    (info,) = plan.infos.values()
    several = replace(plan, names={"a:1": "a", "b:1": "b"}, infos={"a:1": info}, server_tables={"a:1": plan.tables})
    page = Page(several._repr_html_())
    assert page.row("a:1") == "replay 0 of 4,000"
    assert page.row("b:1") == "missing; its episodes are left out"


def test_many_remarks_are_counted() -> None:
    page = Page(notices([Notice("code", "text")] * 1_000_000))
    assert page.text.startswith("advice code: text")
    assert page.text.endswith("and 999,980 more")


# Film strips: which columns have one, of which rows, and never more bytes than there is room for.


def files(pixels: Array) -> Array:
    column = np.empty(len(pixels), object)
    column[:] = png_files(pixels)
    return column


def decoded(picture: str) -> tuple[int, int]:
    size = image_size(base64.b64decode(picture.partition(",")[2]))
    assert size is not None
    return size


@pytest.mark.parametrize(
    ("shape", "size"),
    [
        ((40, 20, 30, 3), (20, 30)),
        ((40, 20, 30, 1), (20, 30)),
        ((40, 20, 30, 4), (20, 30)),
        ((40, 84, 84), (72, 72)),
        ((40, 2, 84, 84, 3), (72, 72)),  # two cameras: the first
        ((40, 480, 640, 3), (54, 72)),
        ((40, 8, 100_000), (1, 72)),
    ],
)
def test_a_strip_is_a_few_small_pictures_over_the_whole_episode(shape: tuple[int, ...], size: tuple[int, int]) -> None:
    html = strips({"image": np.zeros(shape, np.uint8)}, "step")
    page = Page(html)
    assert page.text == f"image {FRAMES} of 40 steps"
    assert 'alt="step 0"' in html
    assert 'alt="step 39" title="step 39 (index 0 to 39)"' in html
    assert [decoded(picture) for picture in page.pictures] == [size] * FRAMES
    assert max(size) <= PIXELS


@pytest.mark.parametrize(
    "column",
    [
        np.zeros((5, 20), np.uint8),
        np.zeros((5, 4, 4, 3), np.uint8),
        np.zeros((0, 20, 30, 3), np.uint8),
        np.zeros((5, 0, 30, 3), np.uint8),
        np.array([b"text", b""], object),
        np.array([None, 3], object),
    ],
)
def test_what_is_no_picture_has_none(column: Array) -> None:
    assert not is_images(column)
    assert strips({"column": column}, "step") == ""


def test_small_files_are_shown_as_they_are_and_large_ones_made_smaller() -> None:
    small, noise = files(images(3)), np.random.default_rng(0).integers(0, 256, (3, 200, 100, 3), np.uint8)
    assert [decoded(picture) for picture in Page(strips({"a": small}, "step")).pictures] == [(20, 30)] * 3
    assert [decoded(picture) for picture in Page(strips({"a": files(noise)}, "step")).pictures] == [(72, 36)] * 3


def test_rows_without_a_file_are_passed_over() -> None:
    column = files(images(4))
    column[1], column[2] = b"", None
    assert len(Page(strips({"a": column}, "step")).pictures) == 2


def test_a_damaged_file_is_said() -> None:
    column = files(np.random.default_rng(0).integers(0, 256, (2, 100, 100, 3), np.uint8))
    column[1] = column[1][:9_000]
    page = Page(strips({"a": column}, "step"))
    assert page.pictures == []
    assert page.text.startswith('a its pictures cannot be shown: column "a"')


def test_a_file_that_claims_to_be_huge_is_not_decoded() -> None:
    column = files(images(1))
    column[0] = column[0][:16] + (100_000).to_bytes(4, "big") * 2 + column[0][24:]
    assert "one of 100,000 x 100,000 pixels" in Page(strips({"a": column}, "step")).text


def test_all_strips_together_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notebook, "MOST_PICTURES", 100_000)
    noise = np.random.default_rng(0).integers(0, 256, (9, 72, 72, 3), np.uint8)
    columns = {f"camera{number}": noise for number in range(100)}
    html = strips(columns, "step")
    page = Page(html)
    assert len(html) < 105_000
    assert len(page.pictures) == FRAMES
    assert page.text.count("its pictures are too large for a notebook") == MOST_STRIPS - 1
    assert page.text.endswith("and 96 more image columns")


def test_without_the_libraries_pixels_are_shown_and_large_files_say_which_extra_they_need(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    large = files(np.random.default_rng(0).integers(0, 256, (1, 100, 100, 3), np.uint8))
    for library in ("PIL", "imagecodecs"):
        monkeypatch.setitem(sys.modules, library, None)
    assert len(Page(strips({"a": images(2)}, "step")).pictures) == 2
    assert "[images]" in Page(strips({"a": large}, "step")).text
