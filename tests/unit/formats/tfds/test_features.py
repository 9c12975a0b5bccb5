"""features.json: every class that is read, what is not, and sizes beyond reason."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds2reverb.errors import SourceError
from rlds2reverb.formats.tfds.features import Stored, TensorFeature, parse_features
from rlds2reverb.images import NotReadHere
from rlds2reverb.specs import ImageSpec, flatten
from tests.support.formats import tfds as make
from tests.support.raising import outcome_of

TEXT = TensorFeature((), np.dtype(object))

READ: dict[str, tuple[Any, Any]] = {
    "tensor": (make.tensor("float32", -1, 3, encoding="zlib"), TensorFeature((None, 3), np.dtype("f4"), "zlib")),
    "optional": (make.tensor("int8", optional=True), TensorFeature((), np.dtype("i1"), "none", True)),
    "old tensor": (
        make.node("feature.Tensor", "tensor", shape={}, dtype="string", encoding="NONE"),
        TEXT,
    ),
    "scalar": (make.node("scalar.Scalar", "tensor", shape={}, dtype="bool"), TensorFeature((), np.dtype(bool))),
    "text": (make.text(), TEXT),
    "label": (
        make.node("class_label_feature.ClassLabel", "classLabel", numClasses="3"),
        TensorFeature((), np.dtype("i8")),
    ),
    "box": (
        make.node("bounding_boxes.BBoxFeature", "boundingBox", shape=make.shape(4), dtype="float32"),
        TensorFeature((4,), np.dtype("f4")),
    ),
    "image": (make.image(-1, 5, 3), ImageSpec((None, 5, 3), np.dtype("u1"))),
    "image of any shape": (make.image(), ImageSpec((None, None, 3), np.dtype("u1"))),
    "labels": (
        make.node("labeled_image.LabeledImage", "image", shape={}, dtype="uint16", label={"numClasses": "2"}),
        ImageSpec((None, None, 1), np.dtype("u2")),
    ),
    "video": (
        make.node("video_feature.Video", "video", shape=make.shape(-1, 4, 5, 3), dtype="uint8"),
        {"a": Stored(ImageSpec((4, 5, 3), np.dtype("u1")), (None,))},
    ),
    "sequence": (make.sequence(make.text(), 3), {"a": Stored(TEXT, (3,))}),
    "dataset": (
        make.dataset(make.together({"a/b": make.text()})),
        {"a/a/b": Stored(TEXT, (None,))},
    ),
    "translation": (
        make.node("translation_feature.Translation", "translation", languages=["de", "en"]),
        {"a/de": Stored(TEXT), "a/en": Stored(TEXT)},
    ),
    "translations": (
        make.node("translation_feature.TranslationVariableLanguages", "translation", languages=["de"]),
        {"a/language": Stored(TEXT, (None,)), "a/translation": Stored(TEXT, (None,))},
    ),
    "no features": (make.together({}), {}),
    "other names of fields": (
        {"python_class_name": f"{make.HOME}.class_label_feature.ClassLabel", "class_label": {}},
        TensorFeature((), np.dtype("i8")),
    ),
}


@pytest.mark.parametrize("name", READ)
def test_every_class_of_rlds_data_is_read(name: str) -> None:
    tree, expected = READ[name]
    found, only_tfds = parse_features(make.together({"a": tree}), "here")
    assert flatten(found) == (expected if isinstance(expected, dict) else {"a": Stored(expected)})
    assert only_tfds == ('here: episode feature "a" is a dataset' if name == "dataset" else "")


NOT_READ = {
    "audio": (make.node("audio_feature.Audio", "audio", dtype="int64"), "audio_feature.Audio"),
    "own class": ({"pythonClassName": "my_project.MyFeature", "jsonFeature": {"json": "{}"}}, "my_project.MyFeature"),
    "old text": (make.node("text_feature.Text", "jsonFeature", json='{"use_encoder": true}'), "encoder"),
    "old json": (make.node("image_feature.Image", "jsonFeature", json="{}"), "jsonFeature"),
    "old tree": ({"type": f"{make.HOME}.text_feature.Text", "content": {}}, "pythonClassName"),
    "gif": (make.image(-1, -1, -1, 3), "GIF"),
    "dtype": (make.tensor("qint8"), "qint8"),
}


@pytest.mark.parametrize("name", NOT_READ)
def test_what_only_tfds_reads_is_named(name: str) -> None:
    tree, said = NOT_READ[name]
    with pytest.raises(NotReadHere, match=f'here: feature "a/b": .*{said}'):
        parse_features(make.together({"a": make.together({"b": tree})}), "here")


WRONG = {
    "no object": [1],
    "negative size": make.tensor("int8", -2),
    "size of letters": make.tensor("int8") | {"tensor": {"shape": {"dimensions": ["x"]}, "dtype": "int8"}},
    "size of true": make.tensor("int8") | {"tensor": {"shape": {"dimensions": [True]}, "dtype": "int8"}},
    "sizes of text": make.tensor("int8") | {"tensor": {"shape": {"dimensions": "12"}, "dtype": "int8"}},
    "huge size": make.tensor("int8", 1 << 40),
    "huge product": make.tensor("int8", 1 << 20, 1 << 20),
    "many dimensions": make.tensor("int8", *[1] * 17),
    "no content": make.node("tensor_feature.Tensor", "image"),
    "no sequence": make.node("sequence_feature.Sequence", "sequence"),
    "no features": make.node("features_dict.FeaturesDict", "featuresDict", features=[]),
    "dtype of a number": make.node("tensor_feature.Tensor", "tensor", dtype=3),
    "encoding": make.tensor("int8", encoding="gzip"),
    "encoded texts": make.tensor("string", encoding="zlib"),
    "image of two sizes": make.image(3, 3),
    "image of two channels": make.image(3, 3, 2),
    "image of doubles": make.image(3, 3, 3, dtype="float64"),
    "colour image of floats": make.image(3, 3, 3, dtype="float32"),
    "video of three sizes": make.node("video_feature.Video", "video", shape=make.shape(4, 5, 3), dtype="uint8"),
    "languages": make.node("translation_feature.Translation", "translation", languages="de"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_makes_no_sense_is_refused_where_it_stands(name: str) -> None:
    with pytest.raises(SourceError, match='here: feature "a') as caught:
        parse_features(make.together({"a": WRONG[name]}), "here")
    assert not isinstance(caught.value, NotReadHere)
    assert len(str(caught.value)) < 500


def test_steps_without_features_are_refused() -> None:
    with pytest.raises(SourceError, match='not RLDS: "steps" has no features'):
        make.reader({})


def test_depth_and_number_of_features_are_bounded() -> None:
    deep: dict[str, Any] = make.text()
    for _ in range(40):
        deep = make.sequence(deep)
    wide = make.together({str(number): make.text() for number in range(10_001)})
    for tree in (deep, wide):
        with pytest.raises(SourceError, match="more than 10,000 features, or 32 levels"):
            parse_features(tree, "here")


_JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=3)),
    lambda child: st.one_of(st.lists(child, max_size=3), st.dictionaries(st.text(max_size=3), child, max_size=3)),
    max_leaves=5,
)
_PLACES = st.integers(0, 1 << 20)


@given(st.sampled_from([tree for tree, _ in (*READ.values(), *NOT_READ.values())]), _PLACES, _JSON)
def test_any_json_in_any_place_is_features_or_our_error(tree: dict[str, Any], place: int, value: Any) -> None:
    changed = json.loads(json.dumps(make.together({"a": tree})))
    holders = [found for found in _holders(changed) if found]
    holder = holders[place % len(holders)]
    key = sorted(holder)[place % len(holder)] if isinstance(holder, dict) else place % len(holder)
    holder[key] = value
    found = outcome_of(SourceError, lambda: parse_features(changed, "here"))
    assert not isinstance(found, SourceError) or str(found).startswith("here")


def _holders(tree: Any) -> list[Any]:
    if isinstance(tree, dict):
        return [tree, *(found for child in tree.values() for found in _holders(child))]
    if isinstance(tree, list):
        return [tree, *(found for child in tree for found in _holders(child))]
    return []
