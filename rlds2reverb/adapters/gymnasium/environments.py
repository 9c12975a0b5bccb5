"""Environments as a source of episodes: whatever reads a dataset plays them, a push, a conversion, an inspection, `local`.

Episode number i begins with a reset by the seed `seed + i`, and so do the random numbers of its actions. So it is the same one whoever plays it, how
many environments play side by side, and how often: a run that was stopped goes on, workers share the episodes, and nothing comes twice.

Environments that are no function of a seed (`live`), and vectors of their own code, which begin anew by themselves, are played on and on.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from copy import copy, deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rlds2reverb.adapters.gymnasium.options import RANDOM, SYNC, EnvironmentKeywords, EnvironmentOptions
from rlds2reverb.adapters.gymnasium.spaces import columns_of_space, spec_of_space
from rlds2reverb.adapters.gymnasium.trajectory import (
    DISABLED,
    INFOS,
    NEXT_STEP,
    EndedTrajectory,
    OpenTrajectories,
    OpenTrajectory,
    StepKinds,
    episode_of,
)
from rlds2reverb.episode import ACTION, OBSERVATION, REWARD, Array, Episode, KnownEpisode, Notice, is_under, note
from rlds2reverb.errors import ConfigError, Rlds2ReverbError, SourceError
from rlds2reverb.extras import needing
from rlds2reverb.formats.functions import code_digest, import_function, name_of_function
from rlds2reverb.formats.source import About, IsKnown, Source, check_shard, unless_known
from rlds2reverb.keywords import make_options, takes_options
from rlds2reverb.learner.recording import value_for
from rlds2reverb.specs import Nest, flatten, nested
from rlds2reverb.text import shortened

if TYPE_CHECKING:
    from typing_extensions import Unpack

with needing("collecting from environments", "gymnasium", ModuleNotFoundError):
    import gymnasium
    from gymnasium import spaces

_ENDLESS = 1 << 62
_VERSIONED = re.compile(r"-v\d+$", re.ASCII)
_DRAWN = 64  # random actions at a time


class EnvironmentSource(Source):
    """See `episodes_of`. It can be pickled for workers where environment and policy are named."""

    def __init__(self, environment: str | Callable[..., Any], options: EnvironmentOptions) -> None:
        self._environment = (
            environment if isinstance(environment, str) else name_of_function(environment, "environment")
        )
        self._function = None if isinstance(environment, str) else environment
        self._options = options
        self._policy = options.policy if isinstance(options.policy, str) else name_of_function(options.policy, "policy")
        make_policy(self._policy, "policy")  # what cannot be imported is told before anything is played
        self.name = f"gymnasium:{self._environment}{self._label()}"
        self._numbers = range(_ENDLESS if options.episodes is None else options.episodes)
        self._kinds: StepKinds | None = None
        self._first: Episode | None = None
        self._spec_json = ""
        self._notices: tuple[Notice, ...] = ()

    def _label(self) -> str:
        options = self._options
        parts: dict[str, Any] = {"policy": self._policy, "seed": options.seed, **options.arguments}
        if self._policy != RANDOM:
            parts["code"] = code_digest(import_function(self._policy, "policy"))
        if options.steps is not None:
            parts["steps"] = options.steps
        if options.infos:
            parts["infos"] = "keep"
        return "?" + "&".join(f"{name}={value}" for name, value in parts.items())

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_function": None}

    def spec(self) -> Nest:
        self._play_first()
        assert self._kinds is not None
        return nested(self._kinds.specs)

    @property
    def is_live(self) -> bool:
        """Whether playing it again gives other episodes."""
        return self._options.live or self._options.is_own

    @property
    def other_episodes_hint(self) -> str:
        return (
            "If the environment, or the policy, does not follow from the seed alone, go on with live=True (--live): what is on disk stays, and new "
            "episodes come behind it"
        )

    @property
    def episode_count(self) -> int | None:
        return None if self._options.steps is not None else len(self._numbers)

    @property
    def is_at_hand(self) -> bool:
        return not self.is_live

    @property
    def has_random_access(self) -> bool:
        return not self.is_live and self._options.steps is None

    def at(self, numbers: Sequence[int]) -> Iterator[tuple[int, Episode]]:
        with self._open() as player:
            for number in numbers:
                yield number, player.play(self._numbers[number], None)

    @property
    def notices(self) -> tuple[Notice, ...]:
        kinds = self._kinds
        if kinds is None:
            return self._notices
        notices = list(self._notices)
        for path, why in kinds.left_out.items():
            notices.append(note("left_out", f"an info that no column holds ({why}); left out", path=f"{INFOS}/{path}"))
        text = "some rows lack it, such as the first one, and hold 0 or empty text"
        notices += [note("filled", text, path=f"{INFOS}/{path}") for path in kinds.filled]
        text = "some values are not in the environment's space; they are kept as they are"
        notices += [note("outside_space", text, path=path) for path in kinds.outside]
        for path, dtype in kinds.unlike.items():
            notices.append(
                note(
                    "space_dtype",
                    f"the environment's space says {dtype}, its values have another dtype; they are kept as they are",
                    path=path,
                )
            )
        return tuple(notices)

    @property
    def about(self) -> About:
        """In the words of Minari, which has these facts: the environment's spec, from which it can be made again, and the policy."""
        self._play_first()
        return About.of("minari", {"env_spec": self._spec_json, "algorithm_name": self._policy})

    def read(
        self, start: int = 0, stop: int | None = None, is_known: IsKnown | None = None
    ) -> Iterator[Episode | KnownEpisode]:
        return unless_known(self._played(start, stop), is_known)

    def shard(self, index: int, count: int) -> Source:
        check_shard(index, count)
        if count == 1:
            return self
        self._check_divisible()
        return self._with_numbers(self._numbers[index::count], f"{self.name}[{index}/{count}]")

    def slice(self, start: int, stop: int | None = None) -> Source:
        if self.is_live or self._options.steps is not None:
            return super().slice(start, stop)
        return self._with_numbers(self._numbers[start:stop], self.name)

    def _check_divisible(self) -> None:
        if self._options.steps is not None or self.is_live:
            what = "steps (--steps)" if self._options.steps is not None else "a live environment"
            raise SourceError(
                f"{self.name}: {what} cannot be divided among workers; say episodes (--episodes), or leave workers out"
            )

    def _with_numbers(self, numbers: range, name: str) -> EnvironmentSource:
        self._play_first()
        part = copy(self)
        part._numbers, part.name, part._first = numbers, name, None
        return part

    # Playing.

    def _play_first(self) -> None:
        """Plays the first episode, which says what columns there are; it is kept."""
        if self._kinds is None:
            self._first = next(self._played(0, 1), None)

    def _played(self, start: int, stop: int | None) -> Generator[Episode, None, None]:
        options = self._options
        left = options.steps
        numbers = self._numbers[:stop] if options.steps is not None else self._numbers[start:stop]
        at, skipped = 0, start if options.steps is not None else 0
        if self.is_live and options.steps is not None and start:
            raise SourceError(
                f"{self.name}: the steps of an earlier run cannot be counted again; say episodes (--episodes), or begin anew (--restart)"
            )
        if self._first is not None and start == 0 and numbers:
            yield self._first
            at, left = 1, None if left is None else left - len(self._first) + 1
        if at >= len(numbers) or left == 0:
            return
        with self._open() as player, closing(player.play_all(numbers[at:], left)) as episodes:
            for number, episode in enumerate(episodes, at):
                if number >= skipped:
                    yield episode

    @contextmanager
    def _open(self) -> Iterator[Player]:
        with _foreign_errors(self.name, "cannot be made"):
            environment = self._make()
        try:
            with _foreign_errors(self.name, "cannot be recorded"):
                kinds = self._kinds or _kinds_of(environment, self._options)
            self._kinds = kinds
            self._spec_json, self._notices = self._spec_of(environment)
            yield Player(environment, kinds, self._options, self._policy, self.name)
        finally:
            environment.close()

    def _spec_of(self, environment: Any) -> tuple[str, tuple[Notice, ...]]:
        """The spec of an environment as JSON, "" without one; and a notice where there is none."""
        if isinstance(environment, gymnasium.vector.AsyncVectorEnv):  # its environments are in other processes
            single = self._make_single()
            text, why = spec_json_of(single)
            single.close()
        else:
            text, why = spec_json_of(next(iter(getattr(environment, "envs", ())), environment))
        if not why:
            return text, ()
        return "", (note("no_env_spec", f"{why}: the dataset does not say how to make its environment again"),)

    def _make_single(self) -> Any:
        function, kwargs = self._make_function, self._options.arguments
        made = gymnasium.make(self._environment, **kwargs) if function is None else function(**kwargs)
        return _checked(made, gymnasium.Env, self.name)

    @property
    def _make_function(self) -> Callable[..., Any] | None:
        """What makes the environment; None for `gymnasium.make`."""
        if self._function is None and ":" in self._environment and not _VERSIONED.search(self._environment):
            return import_function(self._environment, "environment")
        return self._function

    def _make(self) -> Any:
        options, function = self._options, self._make_function
        if options.is_own:
            if function is not None:
                return _checked(function(**options.arguments), gymnasium.vector.VectorEnv, self.name)
            return gymnasium.make_vec(
                self._environment, options.envs, vectorization_mode="vector_entry_point", **options.arguments
            )
        if options.envs == 1:
            return self._make_single()
        if not hasattr(gymnasium.vector, "AutoresetMode"):
            raise SourceError(
                f"{self.name}: several environments need gymnasium 1.1 or later; this is {gymnasium.__version__}. Leave --envs out"
            )
        kind = gymnasium.vector.SyncVectorEnv if options.vectorization == SYNC else gymnasium.vector.AsyncVectorEnv
        return kind([self._make_single] * options.envs, autoreset_mode=gymnasium.vector.AutoresetMode.DISABLED)


@takes_options(EnvironmentOptions)
def episodes_of(environment: str | Callable[..., Any], **options: Unpack[EnvironmentKeywords]) -> EnvironmentSource:
    """The episodes of an environment, as a source that is played while it is read.

    `client.push(episodes_of("CartPole-v1", episodes=100), table="replay")`, `rlds2reverb.convert(episodes_of(...), "minari:/data/cartpole-v0")`.

    Args:
      environment: an id that `gymnasium.make` takes, module:function, or a function. A function gets `env_kwargs`, and returns an environment;
        with `vectorization="own"` it returns a vector of environments.

    Raises:
      ConfigError: an option makes no sense, or there is no such policy.
      SourceError: there is no such environment; raised when it is first played.
    """
    return EnvironmentSource(environment, make_options(EnvironmentOptions, "episodes_of", **options))


def _checked(environment: Any, kind: type, name: str) -> Any:
    if not isinstance(environment, kind):
        raise SourceError(f"{name}: expected a gymnasium.{kind.__name__}, got {type(environment).__name__}")
    return environment


def _kinds_of(environment: Any, options: EnvironmentOptions) -> StepKinds:
    is_vector = isinstance(environment, gymnasium.vector.VectorEnv)
    observation = environment.single_observation_space if is_vector else environment.observation_space
    action = environment.single_action_space if is_vector else environment.action_space
    return kinds_of(observation, action, options.infos)


def kinds_of(observation: spaces.Space[Any], action: spaces.Space[Any], record_infos: bool) -> StepKinds:
    """The columns of steps with values of these spaces.

    Raises:
      ConfigError: a space whose values have no fixed shape.
    """
    return StepKinds(
        flatten(spec_of_space(observation, OBSERVATION), OBSERVATION),
        flatten(spec_of_space(action, ACTION), ACTION),
        record_infos,
    )


def spec_json_of(environment: Any) -> tuple[str, str]:
    """The spec of an environment as JSON; or "", and why there is none."""
    if environment.spec is None:
        return "", "the environment was not made by gymnasium.make, so it has no spec"
    try:
        text: str = environment.spec.to_json()
    except (TypeError, ValueError, AttributeError) as error:  # a function among its arguments, say
        return "", f"its spec cannot be written: {shortened(str(error))}"
    return text, ""


@contextmanager
def _foreign_errors(name: str, what: str) -> Iterator[None]:
    """Turns whatever an environment or a policy raises into a SourceError that names it."""
    try:
        yield
    except Rlds2ReverbError as error:
        raise SourceError(f"{name}: {what}: {error}") from error
    except (Exception, SystemExit) as error:  # which would end the program as if all were done
        raise SourceError(
            f"{name}: {what}: {type(error).__name__}: {shortened(' '.join(str(error).split()))}"
        ) from error


Act = Callable[[Any], Any]
"""From an observation to an action."""


@dataclass(frozen=True)
class Policy:
    """What chooses actions.

    Attributes:
      function: of the user's; None for random actions.
      takes: names among `rng` and `step` that it takes.
      is_of_all: whether it takes the observations of all environments at once.
    """

    function: Callable[..., Any] | None
    takes: frozenset[str] = frozenset()
    is_of_all: bool = False

    def begin(self, space: spaces.Space[Any], seed: int) -> Act:
        """How to act in an episode."""
        function = self.function
        if function is None:
            return _random_actions(space, seed)
        if not self.takes:
            return function
        given: dict[str, Any] = {"rng": np.random.default_rng((seed, 1))} if "rng" in self.takes else {}
        if "step" not in self.takes:
            return lambda observation: function(observation, **given)
        step = iter(range(_ENDLESS))
        return lambda observation: function(observation, step=next(step), **given)


def make_policy(name: str, option: str) -> Policy:
    """The policy of a name: "random", or module:function.

    Raises:
      ConfigError: it cannot be imported, or is called in another way.
    """
    if name == RANDOM:
        return Policy(None)
    function = import_function(name, option)
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # of a C function
        return Policy(function)
    first = next(iter(parameters), None)
    if first is None:
        raise ConfigError(f"{option} {name}: expected a function of an observation, this one takes nothing")
    return Policy(function, frozenset({"rng", "step"} & (parameters.keys() - {first})), first == "observations")


def _random_actions(space: spaces.Space[Any], seed: int) -> Act:
    """Random actions of a space; many are drawn at a time, which is faster than `space.sample`, where its values are numbers within bounds."""
    if isinstance(space, spaces.Discrete) and type(space) is spaces.Discrete:
        rng = np.random.default_rng((seed, 1))
        first, stop, kind = int(space.start), int(space.start) + int(space.n), np.dtype(space.dtype)
        return _drawn(lambda count: rng.integers(first, stop, count, kind.type))
    if type(space) is spaces.Box and space.is_bounded("both") and space.dtype.kind == "f":
        rng = np.random.default_rng((seed, 1))
        low, high = space.low.astype(np.float64), space.high.astype(np.float64)
        if np.isfinite(high - low).all():
            return _drawn(
                lambda count: np.minimum(rng.uniform(low, high, (count, *space.shape)).astype(space.dtype), space.high)
            )
    drawing = deepcopy(space)  # the parts of a nested space, too
    drawing.seed(seed)
    return lambda _: drawing.sample()


def _drawn(draw: Callable[[int], Array]) -> Act:
    def actions() -> Iterator[Any]:
        while True:
            yield from draw(_DRAWN)

    following = actions()
    return lambda _: next(following)


class Player:
    """Plays episodes in one environment, or in a vector of them.

    Args:
      environment: of Gymnasium; of a vector, the mode is DISABLED unless it begins anew by itself.
      kinds: of the columns, which the first step completes.
      options: of the playing.
      policy: its name.
      name: for messages.
    """

    def __init__(self, environment: Any, kinds: StepKinds, options: EnvironmentOptions, policy: str, name: str) -> None:
        self._environment, self.kinds, self._options, self._name = environment, kinds, options, name
        self._policy = make_policy(policy, "policy (--policy)")
        self._is_vector = isinstance(environment, gymnasium.vector.VectorEnv)
        self._space = environment.single_action_space if self._is_vector else environment.action_space
        observed = environment.single_observation_space if self._is_vector else environment.observation_space
        self._nest, self._acts = columns_of_space(observed), columns_of_space(self._space)
        self._trajectory = OpenTrajectory(kinds)

    def play_all(self, numbers: Sequence[int], steps: int | None) -> Generator[Episode, None, None]:
        """Plays the episodes of these numbers, in order; with `steps`, at most so many actions, and the last one is cut there."""
        if self._options.is_own:
            episodes = self._play_on(numbers)
        elif self._is_vector:
            episodes = self._play_together(numbers)
        else:
            for number in numbers:
                episode = self.play(number, steps)
                yield episode
                steps = None if steps is None else steps - len(episode) + 1
                if steps == 0:
                    return
            return
        with closing(episodes):
            for episode in episodes:
                if steps is not None and len(episode) - 1 > steps:
                    yield cut_episode(episode, steps)
                    return
                yield episode
                steps = None if steps is None else steps - len(episode) + 1
                if steps == 0:
                    return

    def play(self, number: int, most: int | None) -> Episode:
        """Plays an episode in one environment, of at most so many actions."""
        if self._is_vector:
            return next(self._play_together([number]))
        seed = self._options.seed + number
        trajectory = self._trajectory
        try:
            return self._play(seed, most)
        except (Exception, SystemExit) as error:
            where = f"episode {number:,} (seed {seed}), step {len(trajectory)}"
            trajectory.forget()
            with _foreign_errors(self._name, where):
                raise error  # noqa: TRY201 - in the context that translates it

    def _play(self, seed: int, most: int | None) -> Episode:
        environment, trajectory, nest, acts = self._environment, self._trajectory, self._nest, self._acts
        step, add = environment.step, trajectory.add
        act = self._policy.begin(self._space, seed)
        if self._policy.is_of_all:
            act = _of_one(act)
        observation, info = environment.reset(seed=seed)
        trajectory.begin(observation if nest is None else nest(observation), info)
        terminated = truncated = False
        while not (terminated or truncated):
            action = act(observation)
            observation, reward, terminated, truncated, info = step(action)
            add(
                action if acts is None else acts(action),
                reward,
                observation if nest is None else nest(observation),
                info,
            )
            if most is not None and len(trajectory) >= most:
                break
        episode = trajectory.end(bool(terminated), {"seed": np.uint64(seed)}, self._where(seed))
        return self._noted(episode)

    def _play_together(self, numbers: Sequence[int]) -> Generator[Episode, None, None]:
        """Plays episodes side by side; they come out in the order of their numbers."""
        count = self._environment.num_envs
        trajectories = OpenTrajectories(self.kinds, count, DISABLED)
        waiting: dict[int, Episode] = {}  # those that ended before an earlier one
        begun = iter(enumerate(numbers))
        places: list[int | None] = [None] * count  # of each environment, the place of its episode among the numbers
        acting: list[Act] = [lambda _: None] * count
        following = 0
        with _foreign_errors(self._name, f"episodes from {numbers[0]:,} (seed {self._options.seed + numbers[0]})"):
            mask = np.ones(count, bool)
            is_first = True
            while True:
                seeds: list[int] = [0] * count
                for slot in np.flatnonzero(mask).tolist():
                    place, number = next(begun, (None, numbers[0]))  # an environment without an episode steps along
                    places[slot], seeds[slot] = place, self._options.seed + number
                    acting[slot] = self._policy.begin(self._space, seeds[slot])
                if all(place is None for place in places):
                    return
                observations, infos = self._environment.reset(
                    seed=seeds, options=None if is_first else {"reset_mask": mask}
                )
                trajectories.reset(self._nested(observations), infos, None if is_first else mask)
                is_first = False
                ended: list[EndedTrajectory] = []
                while not ended:
                    actions = self._actions(acting, observations)
                    observations, rewards, terminated, truncated, infos = self._environment.step(actions)
                    ended = trajectories.step(
                        actions if self._acts is None else self._acts(actions),
                        self._nested(observations),
                        rewards,
                        terminated,
                        truncated,
                        infos,
                    )
                mask = np.zeros(count, bool)
                for trajectory in ended:
                    mask[trajectory.place] = True
                    if (place := places[trajectory.place]) is not None:
                        metadata = {"seed": np.uint64(self._options.seed + numbers[place])}
                        where = self._where(self._options.seed + numbers[place])
                        waiting[place] = self._noted(
                            episode_of(trajectory.columns, trajectory.is_terminal, metadata, trajectory.faults, where)
                        )
                while following in waiting:
                    yield waiting.pop(following)
                    following += 1

    def _play_on(self, numbers: Sequence[int]) -> Generator[Episode, None, None]:
        """Plays episodes in a vector that begins anew by itself, in the order in which they end; only the first ones have seeds."""
        environment = self._environment
        mode = mode_of(environment)
        trajectories = OpenTrajectories(self.kinds, environment.num_envs, mode, self._nest)
        seed, left = self._options.seed + numbers[0], len(numbers)
        with _foreign_errors(self._name, f"a vector of {environment.num_envs} environments (seed {seed})"):
            acting = [self._policy.begin(self._space, seed + place) for place in range(environment.num_envs)]
            observations, infos = environment.reset(seed=seed)
            trajectories.reset(self._nested(observations), infos)
            while left:
                actions = self._actions(acting, observations)
                observations, rewards, terminated, truncated, infos = environment.step(actions)
                acted = actions if self._acts is None else self._acts(actions)
                for trajectory in trajectories.step(
                    acted, self._nested(observations), rewards, terminated, truncated, infos
                ):
                    if left:
                        yield self._noted(episode_of(trajectory.columns, trajectory.is_terminal, {}, trajectory.faults))
                        left -= 1
                if mode == DISABLED and left and (ends := terminated | truncated).any():
                    observations, infos = environment.reset(options={"reset_mask": ends})
                    trajectories.reset(self._nested(observations), infos, ends)

    def _where(self, seed: int) -> str:
        return f"{self._name}: episode {seed - self._options.seed:,} (seed {seed})"

    def _noted(self, episode: Episode) -> Episode:
        list(self.kinds.values_outside(episode.columns))  # which keeps the paths, for the source's notices
        return episode

    def _nested(self, observations: Any) -> Nest:
        return observations if self._nest is None else self._nest(observations)

    def _actions(self, acting: Sequence[Act], observations: Any) -> Any:
        if self._policy.is_of_all:
            return acting[0](observations)
        if self._policy.function is None:
            singles = [act(None) for act in acting]
        else:
            each = gymnasium.vector.utils.iterate(self._environment.observation_space, observations)
            singles = [act(observation) for act, observation in zip(acting, each)]
        if self._policy.function is not None and ACTION in self.kinds.action:
            # Numpy would turn a number of Python's into another dtype than the action's, and one environment alone would refuse it.
            spec = self.kinds.action[ACTION]
            singles = [value_for(ACTION, act, spec) if type(act) in (bool, int, float) else act for act in singles]
        if isinstance(self._space, (spaces.Dict, spaces.Tuple)):
            empty = gymnasium.vector.utils.create_empty_array(self._space, len(singles))
            return gymnasium.vector.utils.concatenate(self._space, singles, empty)
        return np.array(singles)


def _of_one(act: Act) -> Act:
    """A policy of all environments, called with one."""

    def batch_of(nest: Any) -> Any:
        if isinstance(nest, Mapping):
            return {key: batch_of(value) for key, value in nest.items()}
        if isinstance(nest, tuple):
            return tuple(map(batch_of, nest))
        return np.asarray(nest)[None]

    def first_of(nest: Any) -> Any:
        if isinstance(nest, Mapping):
            return {key: first_of(value) for key, value in nest.items()}
        return tuple(map(first_of, nest)) if isinstance(nest, tuple) else np.asarray(nest)[0]

    return lambda observation: first_of(act(batch_of(observation)))


def mode_of(environment: Any) -> str:
    """How a vector of environments begins anew; by default at the next step, as everywhere in gymnasium 1.0."""
    mode = environment.metadata.get("autoreset_mode", NEXT_STEP)
    return str(getattr(mode, "value", mode))


def cut_episode(episode: Episode, steps: int) -> Episode:
    """The first so many actions of an episode, truncated there."""
    columns = {path: column[: steps + 1].copy() for path, column in episode.columns.items()}
    for path, column in columns.items():
        if path == REWARD or is_under(path, ACTION):
            column[-1] = b"" if column.dtype.kind == "O" else 0
    kept = {
        path: column
        for path, column in columns.items()
        if path not in ("discount", "is_first", "is_last", "is_terminal")
    }
    return episode_of(kept, False, episode.metadata, episode.faults)
