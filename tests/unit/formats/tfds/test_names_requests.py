"""Names of TFDS sources, taken apart."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds2reverb.errors import SourceError
from rlds2reverb.formats.tfds.names import FILE_ORDER, DatasetName, Request
from rlds2reverb.formats.tfds.splits import EvenPart


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("x", Request(DatasetName("x"))),
        ("x@", Request(DatasetName("x"))),
        ("x@test", Request(DatasetName("x"), "test")),
        ("MyRobot2Data", Request(DatasetName("my_robot2_data"))),
        ("x/cfg-1.a+b:1.*.*@train[:10%]", Request(DatasetName("x", "cfg-1.a+b", "1.*.*"), "train[:10%]")),
        ("x:1.20.3", Request(DatasetName("x", "", "1.20.3"))),
        ("x@train + test", Request(DatasetName("x"), "train + test")),
        ("/data/x/1.0.0", Request("/data/x/1.0.0")),
        ("/data/x/1.0.0@test", Request("/data/x/1.0.0", "test")),
        ("./x@test", Request("./x", "test")),
        ("../x", Request("../x")),
        ("~/x", Request("~/x")),
        ("~somebody/x@a", Request("~somebody/x", "a")),
        ("gs://bucket/x/1.0.0@test", Request("gs://bucket/x/1.0.0", "test")),
        (r"C:\data\x@test", Request(r"C:\data\x", "test")),
        ("C:/data/x@test", Request("C:/data/x", "test")),
        ("/data/me@home/x", Request("/data/me@home/x")),
        ("/data/me@home/x@test", Request("/data/me@home/x", "test")),
        ("/data/what?/x@test", Request("/data/what?/x", "test")),
        ("x?order=file", Request(DatasetName("x"), order=FILE_ORDER)),
        ("x@test?order=tfds", Request(DatasetName("x"), "test")),
        ("/x@test?order=file,lost_records=skip", Request("/x", "test", FILE_ORDER, True)),
        ("/x?even=2of3", Request("/x", even=EvenPart(2, 3))),
        ("/x@test?drop_remainder=yes,even=0of3", Request("/x", "test", even=EvenPart(0, 3, drop_remainder=True))),
        ("/x?reader=tfds", Request("/x", through_tfds=True)),
        ("/x?reader=files", Request("/x")),
        ("/x?", Request("/x")),
        ("/x%40y%3Fz%2525@a", Request("/x@y?z%25", "a")),
    ],
)
def test_a_name_says_what_is_read(text: str, wanted: Request) -> None:
    assert Request.parse(text) == wanted


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "expected tfds:NAME"),
        ("@train", "expected tfds:NAME"),
        ("?order=file", "expected tfds:NAME"),
        ("1x", '"1x" is no name of a dataset'),
        ("x:1.9", '"x:1.9" is no name of a dataset.*VERSION is three numbers'),
        ("x:latest", '"x" is a namespace, and'),
        ("x y", "is no name of a dataset"),
        ("x/", "is no name of a dataset"),
        ("d4rl/a/b", "is no name of a dataset"),
        ("huggingface:x", "datasets of a namespace come with code to run"),
        ("a-b:x/c:1.0.0", "datasets of a namespace come with code to run"),
        ("x/a=1,b=2", 'arguments "a=1,b=2" are for the code'),
        ("x/cfg:1.0.0/a=1", 'arguments "a=1" are for the code'),
        ("x?orders=file", 'unknown option "orders=file"; there are: order, lost_records, reader, even, drop_remainder'),
        ("x?order", 'option "order": expected tfds or file'),
        ("x?order=file&lost_records=skip", 'option "order=file&lost_records=skip": expected tfds or file'),
        ("x?order=file,order=file", 'option "order" is given twice'),
        ("x?order=file,", 'unknown option ""'),
        ("x?lost_records=all", "expected refuse or skip"),
        ("x?reader=tensorflow", "expected files or tfds"),
        ("x?even=3of3", "expected INDEXofCOUNT with 0 <= INDEX < COUNT"),
        ("x?even=-1of3", "expected INDEXofCOUNT"),
        ("x?even=1of٣", "expected INDEXofCOUNT"),
        ("x?even=1of" + "9" * 5000, "expected INDEXofCOUNT"),
        ("x?drop_remainder=yes", "goes with even=INDEXofCOUNT only"),
        ("x?even=0of1,drop_remainder=1", "expected yes or no"),
    ],
)
def test_a_name_that_makes_no_sense_is_refused_on_one_line(text: str, said: str) -> None:
    with pytest.raises(SourceError, match=said) as caught:
        Request.parse(text)
    assert "\n" not in str(caught.value)


@given(st.text(max_size=30))
def test_any_text_is_a_request_or_refused(text: str) -> None:
    try:
        found = Request.parse(text)
    except SourceError:
        return
    assert found.dataset
    assert found.split


@given(
    name=st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True),
    config=st.from_regex(r"([a-z+.\-]{1,5})?", fullmatch=True),
)
def test_a_dataset_name_reads_as_it_is_written(name: str, config: str) -> None:
    one = DatasetName(name, config, "1.2.*")
    assert DatasetName.parse(str(one)) == one
