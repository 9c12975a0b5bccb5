"""The writer of an environment loop: what it stores when, what it refuses, and what it says of it."""

from __future__ import annotations

import threading
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rlds2reverb import Episode, EpisodeWriter, PushReport
from rlds2reverb.errors import (
    CapacityError,
    ConfigError,
    InvalidEpisode,
    ServerRestarted,
    SpecMismatch,
    Stalled,
    TransportError,
    ViewError,
    report_of,
)
from rlds2reverb.prepare.progress import Progress
from rlds2reverb.specs import ArraySpec
from rlds2reverb.testing import MemoryServer
from rlds2reverb.views import view_of
from rlds2reverb.wire.insert import EpisodeEncoder
from tests.support import strategies
from tests.support.learner.loops import QUICK, step, write, write_as_loop, writer
from tests.support.push.in_memory import Server, table_info
from tests.support.raising import error_of

FLOAT, BOOL, INT = (np.dtype(kind) for kind in ("f4", "?", "i8"))


def made(count: int = 1, steps: int = 5, seed: int = 0) -> list[Episode]:
    rng = np.random.default_rng(seed)
    return [strategies.episode(rng, steps, None, n % 2 == 0, f"made-{seed}-{n}") for n in range(count)]


def append(to: Any, count: int, first: int = 0) -> None:
    for number in range(first, first + count):
        to.append(step(number))


def observations(server: MemoryServer) -> list[tuple[float, float]]:
    """The first number of the two observations of every item."""
    return [(float(item[1][0][0]), float(item[1][1][0])) for item in server.contents()]


class TestLoops:
    def test_a_loop_over_an_environment_makes_one_item_per_transition(self) -> None:
        server = Server()
        with writer(server) as to:
            append(to, 3)
            to.end_episode(observation=np.full(3, 3, np.float32), terminal=True)
            append(to, 2, 10)
            to.end_episode(observation=np.full(3, 12, np.float32), terminal=False)
        assert observations(server) == [(0, 1), (1, 2), (2, 3), (10, 11), (11, 12)]
        report = to.report()
        assert (report.episodes_pushed, report.steps_pushed, report.items_confirmed, report.items_new) == (2, 7, 5, 5)

    def test_a_terminal_end_has_discount_0_where_learners_look(self) -> None:
        server = Server()
        with writer(server) as to:
            for terminal in (True, False):
                append(to, 2)
                to.end_episode(observation=np.zeros(3, np.float32), terminal=terminal)
        discounts = [item[-1].tolist() for item in server.contents()]
        assert discounts == [[1, 0], [0, 0], [1, 1], [1, 1]]

    def test_a_recorded_discount_goes_on_to_the_last_row_unless_the_end_is_terminal(self) -> None:
        server = Server()
        with writer(server, view="sequence:length=1") as to:
            for terminal in (True, False):
                to.append(step(), discount=0.5)
                to.end_episode(observation=np.zeros(3, np.float32), terminal=terminal)
        discounts = [item[-1].tolist() for item in server.contents()]
        assert discounts == [[0.5], [0.0], [0.5], [1.0]]

    def test_values_are_copied_when_they_are_appended(self) -> None:
        server, buffer = Server(), np.zeros(3, np.float32)
        with writer(server) as to:
            for number in range(3):
                buffer[:] = number
                to.append(observation=buffer, action=0, reward=0.0)
            buffer[:] = 3
            to.end_episode(observation=buffer, terminal=False)
            buffer[:] = 99
        assert observations(server) == [(0, 1), (1, 2), (2, 3)]

    def test_several_views_fill_several_tables_from_the_same_rows(self) -> None:
        server = Server({"one": table_info("one"), "two": table_info("two")})
        with writer(server, {"one": "two_step", "two": "episode"}) as to:
            append(to, 4)
            to.end_episode(terminal=False)
        assert {name: len(items) for name, items in server.items.items()} == {"one": 3, "two": 1}

    def test_episodes_of_one_writer_grow_as_long_as_memory_allows(self) -> None:
        server = Server()
        with writer(server, view="episode") as to:
            append(to, 1000)
            to.end_episode(terminal=False)
        (item,) = server.contents()
        assert item[1][:, 0].tolist() == list(range(1000))

    def test_metadata_goes_where_a_view_wants_it(self) -> None:
        server = Server()
        with writer(server, view=view_of("transition:extras=metadata/task")) as to:
            append(to, 2)
            to.end_episode(observation=np.zeros(3, np.float32), terminal=False, metadata={"task": "stack"})
        assert any(value.tolist() == b"stack" for value in server.contents()[0])


class TestNames:
    @pytest.mark.parametrize(("names", "is_warned"), [(("a", "a"), True), (("a", "b"), False), ((None, None), False)])
    def test_a_name_that_was_used_before_is_told(
        self, names: Any, is_warned: bool, caplog: pytest.LogCaptureFixture
    ) -> None:
        server = Server()
        for name, steps in zip(names, (2, 3)):
            with writer(server, name=name) as to:
                append(to, steps)
                to.end_episode(observation=np.zeros(3, np.float32), terminal=True)
        said = [record.getMessage() for record in caplog.records if "under the same names" in record.getMessage()]
        assert len(said) == is_warned
        if is_warned:
            assert "writer a: of 3 items, 2 were in the tables before" in said[0]

    def test_two_writers_without_a_name_share_no_key(self) -> None:
        server = Server()
        for _ in range(2):
            with writer(server) as to:
                write(to, made()[0])
        assert len(server.items["replay"]) == 8

    def test_the_same_steps_under_the_same_names_add_nothing(self) -> None:
        server = Server()
        for _ in range(2):
            with writer(server, name="actor") as to:
                for episode in made(3):
                    write(to, episode)
        assert len(server.items["replay"]) == 12
        assert (to.report().items_confirmed, to.report().items_new) == (12, 0)

    def test_a_name_that_was_there_is_refused_and_the_episode_is_as_before(self) -> None:
        server = Server()
        with writer(server, name="actor") as to:
            append(to, 3)
            to.end_episode(terminal=False, id="x")
            append(to, 3)
            for known in ("x", "actor/1"):
                with pytest.raises(ConfigError, match="has an episode of that name"):
                    to.end_episode(terminal=False, id=known)
            assert len(to) == 3
            to.end_episode(terminal=False, id="y")
        assert len(server.items["replay"]) == 4


class TestRefused:
    @pytest.mark.parametrize(
        ("another", "words"),
        [
            (
                {"observation": np.zeros(4, np.float32)},
                r'column "observation": expected float32\[3\], got float32\[4\]',
            ),
            ({"observation": np.zeros(3)}, r'column "observation": expected float32\[3\], got float64\[3\]'),
            ({"action": np.int32(0)}, r'column "action": expected int64\[\], got int32\[\]'),
            ({"action": 0.5}, r'column "action": expected int64\[\], got float32\[\]'),
            ({"action": 2**63}, 'column "action" is int64.*got 9223372036854775808'),
            ({"reward": 10**400}, 'column "reward": the number is larger than any float'),
            ({"reward": None}, 'column "reward": expected a number, text or a numpy array, got NoneType'),
            ({"reward": "much"}, r'column "reward": expected float32\[\], got string\[\]'),
            ({"reward": {"a": 1.0}}, 'column "reward": expected a number, text or a numpy array, got dict'),
            ({"extra": 1}, 'column "extra" was not there'),
        ],
        ids=str,
    )
    def test_a_step_that_differs_is_refused_by_column_and_leaves_the_episode(self, another: Any, words: str) -> None:
        server = Server()
        with writer(server) as to:
            append(to, 2)
            with pytest.raises(ConfigError, match=words):
                to.append({**step(99), **another})
            append(to, 1, 2)
            to.end_episode(observation=np.full(3, 3, np.float32), terminal=False)
        assert observations(server) == [(0, 1), (1, 2), (2, 3)]

    def test_so_is_one_that_lacks_a_column(self) -> None:
        with writer(Server()) as to:
            append(to, 1)
            with pytest.raises(ConfigError, match='column "reward" is not there'):
                to.append(observation=np.zeros(3, np.float32), action=np.int64(1))
            to.discard_episode()

    def test_the_first_step_is_held_against_the_tables(self) -> None:
        view = view_of("two_step")
        spec = {
            "observation": ArraySpec((3,), FLOAT),
            "action": ArraySpec((), INT),
            "reward": ArraySpec((), FLOAT),
            "discount": ArraySpec((), FLOAT),
            **{flag: ArraySpec((), BOOL) for flag in ("is_first", "is_last", "is_terminal")},
        }
        server = Server({"replay": table_info(signature=view.signature(spec))})
        with writer(server) as to:
            with pytest.raises(SpecMismatch, match="observation"):
                to.append({**step(), "observation": np.zeros(3)})
            assert len(to) == 0
            append(to, 2)
            to.end_episode(terminal=False)
        assert len(server.contents()) == 1

    def test_numbers_take_the_dtypes_of_the_tables(self) -> None:
        spec = {
            "observation": ArraySpec((3,), FLOAT),
            "action": ArraySpec((), np.dtype(np.int32)),
            "reward": ArraySpec((), np.dtype(np.float64)),
            "discount": ArraySpec((), FLOAT),
            **{flag: ArraySpec((), BOOL) for flag in ("is_first", "is_last", "is_terminal")},
        }
        server = Server({"replay": table_info(signature=view_of("two_step").signature(spec))})
        with writer(server) as to:
            for _ in range(2):
                to.append(observation=np.zeros(3, np.float32), action=3, reward=0.1)
            to.end_episode(terminal=False)
        ((_, _, action, _, reward, _),) = server.contents()
        assert (str(action.dtype), str(reward.dtype), reward[0]) == ("int32", "float64", 0.1)

    def test_a_spec_that_is_given_is_held_against_the_tables_before_the_first_step(self) -> None:
        steps = {"observation": ArraySpec((3,), FLOAT), "action": ArraySpec((), INT), "reward": ArraySpec((), FLOAT)}
        flags = {flag: ArraySpec((), BOOL) for flag in ("is_first", "is_last", "is_terminal")}
        signature = view_of("two_step").signature({**steps, **flags, "discount": ArraySpec((), FLOAT)})
        server = Server({"replay": table_info(signature=signature)})
        with pytest.raises(SpecMismatch, match="observation"):
            writer(server, spec={**steps, "observation": ArraySpec((4,), FLOAT)})
        with writer(server, spec=steps) as to:
            with pytest.raises(ConfigError, match='column "observation": expected float32'):
                to.append({**step(), "observation": np.zeros(4, np.float32)})
            append(to, 2)
            to.end_episode(terminal=False)
        assert len(server.contents()) == 1

    @pytest.mark.parametrize("leaf", [3, FLOAT, ArraySpec((None,), FLOAT)], ids=str)
    def test_a_spec_of_something_else_is_refused(self, leaf: Any) -> None:
        with pytest.raises(ConfigError, match='spec: column "observation": expected an ArraySpec'):
            writer(Server(), spec={"observation": leaf})

    def test_steps_that_the_view_cannot_use(self) -> None:
        with writer(Server(), view="transition") as to:
            with pytest.raises(ViewError, match="action"):
                to.append(observation=np.zeros(3, np.float32), reward=0.0)
            assert len(to) == 0

    def test_a_forked_process_makes_its_own(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with writer(Server()) as to:
            append(to, 2)
            with monkeypatch.context() as patched:
                patched.setattr(to, "_process", -1)
                for job in (lambda: to.end_episode(terminal=False), to.flush):
                    with pytest.raises(ConfigError, match="made in another process"):
                        job()

    def test_an_end_without_a_step_or_without_a_word_on_it(self) -> None:
        with writer(Server()) as to:
            with pytest.raises(ConfigError, match="there is no step"):
                to.end_episode(terminal=True)
            append(to, 2)
            with pytest.raises(ConfigError, match="say terminal=True"):
                to.end_episode()
            with pytest.raises(ConfigError, match='column "observation" is not there'):
                to.end_episode(reward=1.0, terminal=True)
            assert len(to) == 2
            to.end_episode(terminal=True)

    def test_flags_that_say_another_end_than_the_caller(self) -> None:
        with writer(Server()) as to:
            for last in (False, True):
                to.append(step(), is_last=last, is_terminal=last)
            with pytest.raises(ConfigError, match="terminal=False, and the last step has is_terminal True"):
                to.end_episode(terminal=False)
            to.end_episode()
        assert to.report().episodes_pushed == 1

    def test_a_bad_episode_is_told_at_its_end_and_the_next_one_goes_well(self) -> None:
        server = Server()
        with writer(server) as to:
            for bad in (True, False):
                append(to, 2)
                observation = np.full(3, np.nan if bad else 2.0, np.float32)
                found = error_of(
                    InvalidEpisode,
                    lambda: to.end_episode(observation=observation, terminal=False),  # noqa: B023  called at once
                )
                assert (found is not None) == bad
        report = to.report()
        assert (report.episodes_read, report.episodes_pushed, report.rejected) == (2, 1, {"nan": 1})
        assert observations(server) == [(0, 1), (1, 2)]

    def test_or_left_out_as_the_policy_says(self) -> None:
        with writer(Server(), on_invalid="skip") as to:
            append(to, 1)
            to.end_episode(terminal=False)
        assert to.report().rejected == {"single_step": 1}

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ({"ledger": "x.db"}, "writer: ledger is an option of a push"),
            ({"again": True}, "writer: again is an option of a push"),
            ({"encoded": "all"}, "writer: encoded is an option of a push"),
            ({"duplicates": "once"}, "writer: duplicates is an option of a push"),
            ({"name": ""}, "writer: name '': expected a text"),
            ({"max_steps": 0}, "writer: max_steps 0: expected a whole number"),
            ({"most_waiting_bytes": True}, "writer: most_waiting_bytes True"),
            ({"table": "nowhere"}, 'the server has no table "nowhere"'),
        ],
        ids=str,
    )
    def test_options_that_make_no_sense(self, options: Any, words: str) -> None:
        with pytest.raises(ConfigError, match=words):
            writer(Server(), **options)

    def test_an_open_episode_is_one_threads(self) -> None:
        with writer(Server()) as to:
            append(to, 2)
            found: list[Any] = []
            thread = threading.Thread(target=lambda: found.append(error_of(ConfigError, lambda: append(to, 1))))
            thread.start()
            thread.join()
            assert "another thread began it" in str(found[0])
            assert to.discard_episode() == 2


class TestLongEpisodes:
    def test_are_cut_so_that_no_transition_is_lost(self) -> None:
        server = Server()
        with writer(server, name="a", max_steps=3) as to:
            append(to, 8)
            to.end_episode(observation=np.full(3, 8, np.float32), terminal=True)
        assert observations(server) == [(n, n + 1) for n in range(8)]
        report = to.report()
        assert (report.episodes_pushed, report.steps_pushed, report.advice) == (3, 4 + 4 + 3, {})

    def test_steps_with_flags_of_their_own_are_cut_too(self) -> None:
        server = Server()
        (episode,) = made(1, 12)
        with writer(server, max_steps=4) as to:
            write(to, episode)
        assert (to.report().episodes_pushed, len(server.contents())) == (3, 11)

    def test_an_end_at_the_cut_is_one_episode(self) -> None:
        server = Server()
        with writer(server, max_steps=3) as to:
            append(to, 3)
            to.end_episode(observation=np.full(3, 3, np.float32), terminal=True)
        assert to.report().episodes_pushed == 1

    def test_a_step_that_differs_does_not_cut(self) -> None:
        with writer(Server(), max_steps=2) as to:
            append(to, 2)
            with pytest.raises(ConfigError):
                to.append({**step(), "action": 0.5})
            assert len(to) == 2
            append(to, 1)
            assert len(to) == 1
            to.discard_episode()

    def test_that_are_not_cut_have_a_bound(self) -> None:
        with writer(Server(), most_episode_bytes=20 * 10) as to:
            append(to, 8)
            with pytest.raises(ConfigError, match="8 steps fill the 200 bytes"):
                append(to, 3)
            to.end_episode(terminal=False)

    def test_a_name_comes_too_late_for_parts_that_went(self) -> None:
        with writer(Server(), max_steps=2) as to:
            append(to, 4)
            with pytest.raises(ConfigError, match="comes too late"):
                to.end_episode(terminal=False, id="x")
            to.end_episode(terminal=False)


class TestVectors:
    def test_episodes_of_several_environments_are_open_at_once(self) -> None:
        server = Server()
        with writer(server, name="v") as to:
            for number in range(4):
                for env in range(3):
                    to.episode(env).append(step(10 * env + number))
            for env in (2, 0, 1):
                to.episode(env).end_episode(terminal=False)
        assert sorted(observations(server)) == [(10 * e + n, 10 * e + n + 1) for e in range(3) for n in range(3)]

    def test_names_do_not_depend_on_who_ends_first(self) -> None:
        servers = [Server(), Server()]
        for server, order in zip(servers, ((0, 1), (1, 0))):
            with writer(server, name="v") as to:
                for env in order:
                    write(to.episode(env), made(2)[env])
        keys = [set(server.items["replay"]) for server in servers]
        assert keys[0] == keys[1]

    @pytest.mark.parametrize("key", [None, "", True, 1.5])
    def test_a_key_that_names_nothing_is_refused(self, key: Any) -> None:
        with writer(Server()) as to, pytest.raises(ConfigError, match="expected a whole number or a text"):
            to.episode(key)


class TestSending:
    def test_an_episode_is_there_without_a_flush(self) -> None:
        server = Server()
        with writer(server) as to:
            write(to, made()[0])
            server.until(lambda: len(server.tables["replay"].items) == 4)

    def test_episodes_of_a_fast_loop_are_encoded_together(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("rlds2reverb.learner.writer._KEPT_SECONDS", 3600.0)
        together = []
        encode = EpisodeEncoder.encode
        monkeypatch.setattr(EpisodeEncoder, "encode", lambda *args: together.append(1 + len(args[3])) or encode(*args))
        server = Server()
        with writer(server) as one:
            for episode in made(30):
                write(one, episode)
            one.flush()
            assert len(server.contents()) == 4 * 30
        assert sum(together) == 30
        assert len(together) <= 3

    def test_flush_returns_when_all_is_confirmed_and_the_writer_goes_on(self) -> None:
        server = Server()
        with writer(server) as to:
            for count in (1, 2, 3):
                write(to, made()[0])
                to.flush()
                assert (to.report().episodes_pushed, len(server.contents())) == (count, 4 * count)

    def test_a_full_table_evicts_by_default_and_not_when_told(self) -> None:
        server = Server({"replay": table_info(max_size=6)})
        with writer(server) as to:
            for episode in made(3):
                write(to, episode)
        assert len(server.contents()) == 6
        with pytest.raises(CapacityError), writer(server, allow_eviction=False) as to:
            write(to, made()[0])
        assert len(server.contents()) == 6

    def test_a_blocked_limiter_lets_the_loop_wait_and_is_told(self) -> None:
        server, told = Server(), list[Progress]()
        server.hold()
        to = writer(server, on_progress=told.append, most_waiting_bytes=1)
        ended = threading.Event()

        def loop() -> None:
            for episode in made(4):
                write(to, episode)
            to.flush()
            ended.set()

        thread = threading.Thread(target=loop)
        thread.start()
        assert not ended.wait(0.2)
        server.release()
        thread.join(20)
        assert ended.is_set()
        assert any(progress.waiting for progress in told)
        to.close()
        assert len(server.contents()) == 16

    def test_a_stall_is_raised_by_flush_with_the_account(self) -> None:
        server = Server()
        server.hold(2)
        to = writer(server, deadlines=replace(QUICK, stall=0.3))
        write(to, made()[0])
        with pytest.raises(Stalled) as caught:
            to.flush()
        report = report_of(caught.value, PushReport)
        assert report is not None
        assert (report.episodes_read, report.episodes_unconfirmed) == (1, 1)
        to.close()

    def test_a_broken_stream_is_taken_up_again(self) -> None:
        server = Server()
        with writer(server) as to:
            write(to, made()[0])
            to.flush()
            server.break_streams()
            write(to, made()[0])
            to.flush()
        assert len(server.contents()) == 8

    def test_a_stream_that_falls_silent_is_taken_up_on_another_connection(self) -> None:
        server = Server()
        with writer(server) as to:
            write(to, made()[0])
            to.flush()
            server.silence_streams()
            write(to, made()[0])
            server.until(lambda: len(server.tables["replay"].items) == 8, 20)
        assert to.report().reconnects == 1

    def test_a_server_that_is_gone_is_told_once_and_then_that_the_writer_has_stopped(self) -> None:
        server = Server()
        to = writer(server)
        write(to, made()[0])
        to.flush()
        server.is_away = True
        server.break_streams()
        found = _first_error(to)
        assert isinstance(found, TransportError)
        assert to.report().stopped.startswith(type(found).__name__)
        with pytest.raises(ConfigError, match="it stopped earlier"):
            append(to, 1)
        with pytest.raises(ConfigError, match="it stopped earlier"):
            to.flush()
        to.close()

    def test_so_is_a_server_that_was_restarted(self) -> None:
        server = Server()
        to = writer(server)
        write(to, made()[0])
        to.flush()
        server.restart()
        assert isinstance(_first_error(to), ServerRestarted)
        to.close()
        with writer(server) as to:
            write(to, made()[0])
        assert len(server.contents()) == 4

    def test_a_failure_that_nobody_met_is_raised_by_close(self) -> None:
        server = Server()
        to = writer(server)
        write(to, made()[0])
        server.fail_after(0)
        write(to, made()[0])
        with pytest.raises(TransportError):
            to.close()
        to.close()


class TestClosing:
    def test_an_episode_without_an_end_is_told_and_not_stored(self) -> None:
        server = Server()
        with pytest.warns(UserWarning, match=r"before the end of a/1 \(2 steps\), a/7/0 \(1 steps\)"):
            with writer(server, name="a") as to:
                write_as_loop(to, made()[0])
                write_as_loop_partly(to)
                to.episode(7).append(to_step(made()[0]))
        assert len(server.contents()) == 4

    def test_unless_it_is_discarded(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with writer(Server()) as to:
                append(to, 2)
                assert to.discard_episode() == 2
                assert to.discard_episode() == 0

    def test_after_an_error_in_the_block_whole_episodes_are_stored(self) -> None:
        server = Server()
        with pytest.raises(ZeroDivisionError), writer(server) as to:
            write(to, made()[0])
            append_like(to, made()[0], 2)
            raise ZeroDivisionError
        assert len(server.contents()) == 4
        assert to.report().episodes_pushed == 1

    def test_nothing_goes_on_after_it(self) -> None:
        to = writer(Server())
        write(to, made()[0])
        to.close()
        for job in (lambda: append(to, 1), to.flush):
            with pytest.raises(ConfigError, match="it has been closed"):
                job()

    def test_a_writer_that_wrote_nothing_says_so(self) -> None:
        with writer(Server()) as to:
            to.flush()
        assert (to.report().episodes_read, to.report().tables, to.report().view) == (0, ("replay",), "two_step")


def test_several_threads_have_a_writer_each_on_one_client() -> None:
    server = Server()
    threads = [threading.Thread(target=_actor, args=(server, number)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(server.contents()) == 4 * 5 * 4


def _actor(server: Server, number: int) -> None:
    with writer(server, name=f"actor-{number}") as to:
        for episode in made(5, seed=number):
            write(to, episode)


def _first_error(to: EpisodeWriter) -> Exception:
    """What the next calls raise first; the loop ends because the sending has failed."""
    while True:
        found = error_of(Exception, lambda: write(to, made()[0])) or error_of(Exception, to.flush)
        if found is not None:
            return found


def to_step(episode: Episode) -> dict[str, Any]:
    left_out = ("is_first", "is_last", "is_terminal", "discount")
    return {path: column[0] for path, column in episode.columns.items() if path not in left_out}


def write_as_loop_partly(to: EpisodeWriter) -> None:
    for _ in range(2):
        to.append(to_step(made()[0]))


def append_like(to: EpisodeWriter, episode: Episode, count: int) -> None:
    for row in range(count):
        to.append({path: column[row] for path, column in episode.columns.items()})


class TestWholeEpisodes:
    def test_steps_and_whole_episodes_go_to_the_same_table(self) -> None:
        server = Server()
        columns = {
            "observation": np.zeros((4, 3), np.float32),
            "action": np.arange(4),
            "reward": np.ones(4, np.float32),
        }
        with writer(server, name="loop") as to:
            append(to, 2)
            to.end_episode(observation=np.zeros(3, np.float32), terminal=True)
            to.write_episode(columns, terminal=False)
            to.write_episode(columns, terminal=False)
            to.write_episode(columns, terminal=False, id="mine")
        assert to.report().items_confirmed == 2 + 3 * 3

    def test_parts_that_are_cut_off_have_names_of_their_own(self) -> None:
        server = Server()
        columns = {"observation": np.arange(8.0), "action": np.arange(8), "reward": np.ones(8)}
        with writer(server, max_steps=3) as to:
            to.write_episode(columns, terminal=True, id="mine")
            for name in ("mine", "mine+2"):
                with pytest.raises(ConfigError, match="this writer has an episode of that name"):
                    to.write_episode(columns, terminal=True, id=name)
        assert (to.report().episodes_pushed, len(server.contents())) == (3, 7)

    def test_columns_of_different_lengths_are_refused_whole(self) -> None:
        server = Server()
        with writer(server, max_steps=3) as to:
            with pytest.raises(InvalidEpisode, match="expected 8 rows"):
                to.write_episode({"observation": np.arange(8.0), "action": np.arange(7)}, terminal=True)
        assert not server.contents()

    @pytest.mark.parametrize(
        ("change", "options", "match"),
        [
            ({"action": np.zeros(4, np.float32)}, {}, r'column "action" is float32\[\], and was int64'),
            ({"other": np.zeros(4)}, {}, r'column "other" is float64\[\], and was not there'),
            ({}, {"id": "mine"}, 'id "mine": this writer has an episode of that name'),
            ({}, {"terminal": None}, "say by terminal="),
            ({}, {"terminal": "False"}, "terminal 'False': expected True or False"),
            ({"is_terminal": np.zeros(4, bool)}, {}, "not by both"),
            ({"action": np.zeros(0, np.int64), "observation": np.zeros((0, 3)), "reward": np.zeros(0)}, {}, "no rows"),
        ],
    )
    def test_what_does_not_go_with_earlier_steps_is_refused(self, change: Any, options: Any, match: str) -> None:
        server = Server()
        columns = {
            "observation": np.zeros((4, 3), np.float32),
            "action": np.arange(4),
            "reward": np.ones(4, np.float32),
        }
        with writer(server) as to:
            to.write_episode(columns, terminal=False, id="mine")
            with pytest.raises(ConfigError, match=match):
                to.write_episode({**columns, **change}, **{"terminal": False, **options})
            to.write_episode(columns, terminal=True)
        assert to.report().episodes_pushed == 2
