"""Problems of many episodes: counted by code, the first few kept, and how many more there are."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rlds2reverb.episode import Episode
from rlds2reverb.prepare.findings import EXAMPLES, Findings
from rlds2reverb.prepare.problems import CODES, Problem

FOUND = st.lists(st.lists(st.sampled_from(["nan", "shape", "last_reward"]), max_size=5), max_size=8)


@given(FOUND)
def test_examples_and_those_beyond_them_are_all_problems(episodes: list[list[str]]) -> None:
    findings = Findings()
    for number, codes in enumerate(episodes):
        findings.add(Episode({}, id=f"e{number}"), [Problem(code, "", f"{number}") for code in codes])
    for code in CODES:
        every = [number for number, codes in enumerate(episodes) for found_code in codes if found_code == code]
        kept = findings.examples.get(code, [])
        assert [example.episode for example in kept] == [f"e{number}" for number in every[:EXAMPLES]]
        assert len(kept) + findings.more(code) == len(every)
        assert findings.episodes[code] == len(set(every))
        assert (code in findings.as_dict()) == bool(every)


def test_an_episode_is_named_by_its_id_and_by_the_datasets_own() -> None:
    findings = Findings()
    findings.add(Episode({}, {"episode_metadata/episode_id": b"run 7"}, "train#3"), [Problem("nan", "reward", "x")])
    findings.add(Episode({}, id="train#4"), [Problem("nan", "reward", "x")])
    assert [example.title for example in findings.examples["nan"]] == ["train#3 (episode_id run 7)", "train#4"]
    assert findings.as_dict()["nan"] == {
        "episodes": 2,
        "problems": 2,
        "meaning": CODES["nan"].meaning,
        "advice": False,
        "examples": [
            {"episode": "train#3", "episode_id": "run 7", "path": "reward", "detail": "x"},
            {"episode": "train#4", "episode_id": None, "path": "reward", "detail": "x"},
        ],
    }
