"""Faults drawn at random while datasets are read from a bucket and converted into it: the data are right, or the error is a sentence."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from rlds2reverb.conversion.convert import convert
from rlds2reverb.conversion.place import PREFIX
from rlds2reverb.errors import Rlds2ReverbError, StorageError
from rlds2reverb.formats import open_destination, open_source
from rlds2reverb.formats.buckets import BucketPath
from rlds2reverb.formats.objects import forget
from tests.contract.destination_cases import data
from tests.contract.test_destinations import contents, written
from tests.support.buckets import Faults, Request, Storage
from tests.support.profiles import DEEP, SEED, drawn
from tests.support.raising import outcome_of

FORMS = (
    "tfds:{}/my_set?shards=2",
    "minari:{}/set",
    "ted:{}/set.h5",
    "ilr:{}/set",
    "lerobot:{}/set?fps=10,last_step=keep",
)
TRANSIENT, LASTING = (429, 500, 503), (400, 403)


class Disturbance:
    """Answers some requests with faults, each drawn from `rng`; at most `most`, so that the service is healthy at last."""

    def __init__(self, rng: np.random.Generator, most: int, share: float) -> None:
        self._rng, self._left, self._share = rng, most, share
        self._cuts = self._is_lasting = False
        self.made: list[str] = []

    def status(self, request: Request) -> int | None:
        self._cuts = False
        if self._left <= 0 or self._rng.random() >= self._share:
            return None
        self._left -= 1
        kind = self._rng.choice(["busy", "cut", "refused"], p=[0.5, 0.3, 0.2])
        self.made.append(f"{kind} {request.method} {request.path}")
        if kind == "cut":
            self._cuts = True
            return None
        return int(self._rng.choice(TRANSIENT if kind == "busy" else LASTING))

    def cuts(self, _: Request) -> bool:
        return self._cuts


def is_a_sentence(error: Rlds2ReverbError) -> bool:
    text = str(error)
    return "\n" not in text and "some-secret" not in text and "Debug source" not in text and len(text) < 600


def test_faults_lose_double_or_change_nothing(
    storage: Storage, cloud: Faults, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage.create("disturbed")
    episodes = data.KINDS["plain"](tmp_path)
    wanted = {form: written_by(form, tmp_path / str(number), episodes) for number, form in enumerate(FORMS)}
    for form in FORMS:
        convert(episodes, form.format(f"s3://disturbed/whole/{FORMS.index(form)}"))
    rng = np.random.default_rng(SEED if DEEP else 0)
    for round_ in range(drawn(6, 200)):
        form = FORMS[rng.integers(len(FORMS))]
        where = f"s3://disturbed/{round_}"
        monkeypatch.setenv("RLDS2REVERB_CACHE_BYTES", str(rng.choice([0, 10**8])))
        monkeypatch.setenv("RLDS2REVERB_CACHE", str(tmp_path / f"cache-{rng.integers(3)}"))
        forget()
        disturbance = Disturbance(rng, most=int(rng.integers(1, 5)), share=float(rng.choice([0.1, 0.5])))
        cloud.before = cloud.before_write = disturbance.status
        cloud.cut = disturbance.cuts
        whole = open_destination(form.format(f"s3://disturbed/whole/{FORMS.index(form)}"))
        there = open_destination(form.format(where))
        converting = partial(convert, whole.source(whole.path), there)
        attempts: list[Callable[[], object]] = [partial(written, whole), converting]
        for attempt in attempts:
            found = outcome_of(Rlds2ReverbError, attempt)
            if isinstance(found, Rlds2ReverbError):
                assert isinstance(found, StorageError), found
                assert is_a_sentence(found), found
            elif attempt is not converting:
                assert found == wanted[form], disturbance.made
        partly = outcome_of(Rlds2ReverbError, partial(written, there))
        assert isinstance(partly, Rlds2ReverbError) or partly == wanted[form], disturbance.made
        cloud.before = cloud.before_write = lambda _: None
        cloud.cut = lambda _: False
        if isinstance(found, Rlds2ReverbError):
            converting()
        assert written(there) == wanted[form], disturbance.made
        assert not any(PREFIX in str(path) for path in BucketPath(where).walk())


def written_by(form: str, folder: Path, episodes: object) -> list[object]:
    """What a conversion on this machine's disk gives."""
    convert(episodes, form.format(folder))
    destination = open_destination(form.format(folder))
    return contents(open_source(destination.source(destination.path)))
