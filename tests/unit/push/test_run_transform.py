"""A push with a transform: items, keys, ledger, what is refused and what is counted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlds2reverb
from rlds2reverb.errors import ConfigError, InvalidEpisode
from rlds2reverb.formats.lists import EpisodeList
from rlds2reverb.formats.transform import Transform
from rlds2reverb.formats.transformed import transformed
from rlds2reverb.prepare.options import EpisodeOptions
from rlds2reverb.prepare.preparation import Preparation
from rlds2reverb.push.options import PushOptions
from rlds2reverb.specs import flatten, spec_texts
from tests.support.push import in_memory
from tests.support.push.in_memory import Server, episodes, planned, push
from tests.unit.formats.test_transformed import WHOLE, robot, with_column


def keys(items: dict[int, Any] | None) -> set[int]:
    return set(items or {})


def pushed(**options: Any) -> dict[int, Any]:
    """Key -> values of a push into a fresh server."""
    server = Server()
    push(server, [robot(0), robot(1)], **options)
    return server.items["replay"]


def test_items_are_made_of_the_new_columns() -> None:
    server = Server()
    plan = planned(server, [robot(0)], transform=WHOLE)
    texts = spec_texts(plan.tables[0].signature)
    assert texts["observation/image"] == "uint8[2, 3, 4, 3]"
    assert texts["action"] == "float32[2, 4]"
    assert plan.tables[0].not_in_items == ("proprio",)
    assert plan.as_dict()["transform"] == WHOLE.as_dict()
    report = push(server, [robot(0)], transform=WHOLE)
    assert report.items_confirmed == 3
    assert {4} <= {value.shape[-1] for values in server.items["replay"].values() for value in values if value.ndim == 2}


def test_what_changes_values_changes_keys_and_what_does_not_does_not() -> None:
    """One dataset with and without a transform lie side by side in one table, though shapes and names are the same."""
    plain = keys(pushed())
    assert len(plain) == 6
    assert keys(pushed(transform=())) == keys(pushed(transform={})) == plain
    swapped = [keys(pushed(transform=f"action=concat({parts})")) for parts in ("arm,mode", "mode,arm")]
    sizes = [keys(pushed(transform=f"resize=observation/image:6x5{method}")) for method in ("", ":lanczos3")]
    every = [plain, *swapped, *sizes]
    assert len(set().union(*every)) == 6 * len(every)


def test_the_same_transform_gives_the_same_keys_however_it_is_written(tmp_path: Path) -> None:
    (tmp_path / "t.yaml").write_text(
        "transform: {drop: [observation/words, action/mode], rename: {action: act, act2: x}}"
    )
    (tmp_path / "t.yaml").write_text("transform: {drop: [observation/words, action/mode]}")
    forms = (
        "drop=observation/words,action/mode",
        ["drop=action/mode", {"drop": "observation/words"}],
        tmp_path / "t.yaml",
    )
    made = [keys(pushed(transform=form)) for form in forms]
    assert made[0] == made[1] == made[2] != keys(pushed())


def test_a_shift_of_rewards_is_one_whoever_asks_for_it() -> None:
    allow = ("first_reward_lost",)
    by_option = pushed(last_reward="shift", allow=allow)
    by_transform = pushed(transform="reward_last=shift", allow=allow)
    both = pushed(last_reward="shift", transform={"reward_last": "shift"}, allow=allow)
    assert by_option.keys() == by_transform.keys() == both.keys() != pushed().keys()
    for key, values in by_option.items():
        for value, two, three in zip(values, by_transform[key], both[key]):
            np.testing.assert_array_equal(value, two)
            np.testing.assert_array_equal(value, three)


def test_what_the_steps_do_not_allow_is_refused_before_the_server_is_asked() -> None:
    def ask() -> Any:
        raise AssertionError("asked")

    with pytest.raises(ConfigError, match='transform: drop: "nothing" is no column'):
        in_memory.plan_push(EpisodeList([robot(0)]), PushOptions("replay", transform="drop=nothing"), ask)
    with pytest.raises(ConfigError, match="would both be named"):
        in_memory.plan_push([robot(0)], PushOptions("replay", transform="rename=action/arm:a,action/grip:a"), ask)


def test_a_file_is_read_once(tmp_path: Path) -> None:
    file = tmp_path / "t.yaml"
    file.write_text("drop: observation/words")
    options = PushOptions("replay", transform=file)
    file.unlink()
    server = Server()
    plan = in_memory.plan_push([robot(0)], options, in_memory.asking(server))
    assert plan.with_progress(lambda _: None).options.chosen_transform == Transform(drop="observation/words")


BAD = with_column("action/arm", np.zeros((4, 4), np.float32))


def test_a_bad_episode_is_refused_whole() -> None:
    server = Server()
    with pytest.raises(
        InvalidEpisode, match=r'robots#1 .*untransformed: column "action/arm": expected rows of float32\[3\]'
    ) as caught:
        push(server, [robot(0), BAD, robot(2)], transform=WHOLE)
    assert {problem.code for problem in caught.value.problems} >= {"untransformed"}
    assert server.items["replay"].keys() == keys(pushed_one())


def pushed_one() -> dict[int, Any]:
    server = Server()
    push(server, [robot(0)], transform=WHOLE)
    return server.items["replay"]


def test_or_it_is_skipped_and_counted() -> None:
    server = Server()
    report = push(server, [robot(0), BAD, robot(2)], transform=WHOLE, on_invalid="skip")
    assert report.rejected == {"untransformed": 1}
    assert (report.episodes_read, report.episodes_pushed) == (3, 2)
    with pytest.raises(ConfigError, match="untransformed cannot be tolerated"):
        push(server, [BAD], transform=WHOLE, allow=("untransformed",))


def test_a_ledger_tells_transforms_apart(tmp_path: Path) -> None:
    server, data = Server(), [robot(0), robot(1)]
    ledger = tmp_path / "ledger.db"
    assert push(server, data, ledger=ledger).episodes_resumed == 0
    assert push(server, data, ledger=ledger, transform="drop=observation/words").episodes_resumed == 0
    assert push(server, data, ledger=ledger, transform={"drop": ["observation/words"]}).episodes_resumed == 2
    assert push(server, data, ledger=ledger).episodes_resumed == 2


def test_absent_fields_are_filled_after_it() -> None:
    report = push(Server(), episodes(2), transform="drop=reward")
    assert report.filled == ("reward",)
    assert report.episodes_pushed == 2


STANDARD: dict[str, Any] = {
    "make": {
        "action": "concat(delta(observation/state), gripper_binarize(action/grip))",
        "drawn": "choose(action/arm[:2], observation/state, seed=3)",
    },
    "select": ["observation/image", "drawn", "action"],
    "drop_first_rows": 1,
}


def test_made_columns_are_the_same_in_a_push_in_parts_of_one_and_without_a_server(tmp_path: Path) -> None:
    data = [robot(number, 4 + number) for number in range(12)]
    options: dict[str, Any] = {"transform": STANDARD, "last_step": "repeat"}
    whole = Server()
    assert push(whole, data, view="transition", **options).episodes_pushed == 12
    parts, ledger = Server(), tmp_path / "ledger.db"
    push(parts, data[:5], view="transition", ledger=ledger, **options)
    assert push(parts, data, view="transition", ledger=ledger, **options).episodes_resumed == 5
    assert whole.items["replay"].keys() == parts.items["replay"].keys()
    assert len(whole.items["replay"]) == sum(2 + number for number in range(12))
    local = rlds2reverb.local(EpisodeList(data, "robots"), "transition", batch_size=1, **options)
    by_key = {int(sample.info.key[0]): sample.data for sample in local}
    for key, values in whole.items["replay"].items():
        np.testing.assert_equal(parts.items["replay"][key], values)
        np.testing.assert_array_equal(
            np.concatenate([*map(np.ravel, flatten(by_key[key]).values())]), np.concatenate([*map(np.ravel, values)])
        )


def test_what_makes_other_columns_makes_other_keys() -> None:
    drawn = [f"make=observation/state:choose(observation/state,action/arm[:2],seed={seed})" for seed in range(3)]
    rows = [{"drop_first_rows": 1}, {"drop_last_rows": 1}]
    every = [keys(pushed(transform=transform)) for transform in (*drawn, *rows)]
    assert len(set().union(*every)) == sum(map(len, every))


def test_an_episode_that_loses_all_rows_is_counted() -> None:
    report = push(Server(), [robot(0, 2), robot(1, 5)], transform={"drop_first_rows": 2}, on_invalid="skip")
    assert report.rejected == {"untransformed": 1}
    assert (report.episodes_read, report.episodes_pushed) == (2, 1)


def test_rows_that_a_filter_leaves_are_transformed_run_by_run() -> None:
    """A gap ends an episode, so no delta spans it; and rows of one episode have one choice."""
    data = [robot(number, 9) for number in range(8)]
    source = EpisodeList(data, "robots")
    plain = {episode.id: episode for episode in source}
    ready = Preparation.open(
        source, EpisodeOptions(transform=STANDARD, keep_ranges={episode.id: [[0, 4], [5, 9]] for episode in data})
    )
    for made in ready.source:
        name, _, rows = made.id.partition("[")
        whole = plain[name].columns
        start, stop = (0, 4) if rows.startswith(":") else (5, 9)
        np.testing.assert_allclose(
            made.columns["action"][:, :2], np.diff(whole["observation/state"][start:stop], axis=0)[1:]
        )
        (alone,) = transformed(EpisodeList([plain[name]], "r"), Transform(make={"drawn": STANDARD["make"]["drawn"]}))
        np.testing.assert_array_equal(made.columns["drawn"], alone.columns["drawn"][start + 1 : stop - 1])
