"""Wrappers that record what a loop of your own plays, as Minari's collector does: into a dataset of any format, a table of a server, or memory.

    env = DataCollector(gymnasium.make("CartPole-v1"), "minari:cartpole/mine-v0")
    for _ in range(100):
        observation, info = env.reset()
        while ...:
            observation, reward, terminated, truncated, info = env.step(action)
    env.close()

| into | episodes are |
| --- | --- |
| the name of a dataset to be | written when they end; on disk every few seconds, or after `checkpoint_every`; `close` makes the dataset appear |
| a `DatasetWriter` (`rlds2reverb.dataset_writer`) or an `EpisodeWriter` (`client.writer`) | handed over when they end; whoever made it closes it |
| None | kept in memory, for `create_dataset` and `add_to_dataset` |

Source of the callbacks and of what an early reset means: `minari/data_collector` of Minari 0.5.4.
"""

from __future__ import annotations

import json
import secrets
import warnings
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from rlds2reverb.adapters.gymnasium.environments import kinds_of, mode_of, spec_json_of
from rlds2reverb.adapters.gymnasium.spaces import columns_of_space
from rlds2reverb.adapters.gymnasium.trajectory import INFOS, OpenTrajectories, OpenTrajectory, StepKinds, episode_of
from rlds2reverb.conversion.report import ConvertReport
from rlds2reverb.conversion.writer import DatasetWriter, dataset_writer
from rlds2reverb.episode import ACTION, IS_TERMINAL, OBSERVATION, REWARD, Array, Episode, columns_below, columns_under
from rlds2reverb.errors import ConfigError
from rlds2reverb.extras import needing
from rlds2reverb.formats.source import About
from rlds2reverb.learner.writer import EpisodeWriter
from rlds2reverb.specs import ArraySpec, Nest, nested

with needing("collecting from environments", "gymnasium", ModuleNotFoundError):
    import gymnasium

AUTOSEED = "minari_autoseed"
"""Minari's option of a reset that switches off the seed it makes; not passed on to the environment."""

_NO_INFOS: Mapping[str, Any] = {}
_STEP_KEYS = frozenset(["action", "observation", "reward", "terminated", "truncated", "info"])


class StepDataCallback:
    """Makes of each step what is recorded of it. Override it to change values, or to add some.

    Further keys, nested or not, are recorded as infos, whether or not other infos are. Minari's own callbacks fit as they are.
    """

    def __call__(
        self,
        env: Any,
        obs: Any,
        info: Mapping[str, Any],
        *,
        action: Any = None,
        rew: Any = None,
        terminated: bool | None = None,
        truncated: bool | None = None,
    ) -> dict[str, Any]:
        """Returns the step: `observation`, `info`, and, after an action, `action`, `reward`, `terminated`, `truncated`. A reset has no action."""
        return {
            "action": action,
            "observation": obs,
            "reward": rew,
            "terminated": terminated,
            "truncated": truncated,
            "info": info,
        }


class EpisodeMetadataCallback:
    """Makes the metadata of a whole episode. Override it to say more: numbers, arrays of them, or text."""

    def __call__(self, episode: Mapping[str, Any]) -> Mapping[str, Any]:
        """Returns path -> value.

        Args:
          episode: nests of arrays `observations` and `infos`, [T + 1, ...], `actions`, [T, ...]; `rewards`, `terminations` and `truncations`, [T];
            `seed`, where the reset had one.
        """
        rewards = episode["rewards"]
        return {
            "rewards_sum": float(rewards.sum()),
            "rewards_mean": float(rewards.mean()),
            "rewards_std": float(rewards.std()),
            "rewards_max": float(rewards.max()),
            "rewards_min": float(rewards.min()),
        }


class Collecting:
    """Where a collector's episodes go, and what they have in common.

    Args:
      into: see the module.
      kinds: of the columns.
      about: facts of the dataset.
      metadata: makes the metadata of an episode.
      options: of `dataset_writer`, where `into` is a name.

    Attributes:
      count: episodes that were handed over, or are kept.

    Raises:
      ConfigError: `into` is nothing of these, or options without a name.
    """

    def __init__(
        self,
        into: str | DatasetWriter | EpisodeWriter | None,
        kinds: StepKinds,
        about: About,
        metadata: Callable[[Mapping[str, Any]], Mapping[str, Any]],
        options: Mapping[str, Any],
    ) -> None:
        if options and not isinstance(into, str):
            raise ConfigError(
                f"DataCollector: {', '.join(options)}: options of a dataset that the collector writes; into is no name of one"
            )
        if not (into is None or isinstance(into, str | DatasetWriter | EpisodeWriter)):
            raise ConfigError(
                f"DataCollector: into: expected the name of a dataset, a dataset_writer, a client.writer, or None; got a {type(into).__name__}"
            )
        self._kinds, self._about, self._metadata = kinds, about, metadata
        self._options = dict(options)
        self._into: DatasetWriter | EpisodeWriter | None = None
        self._is_own = isinstance(into, str)
        if isinstance(into, str):
            # The place is taken before anything is played.
            self._into = dataset_writer(into, about=about, **self._options)
        else:
            self._into = into
        self._kept: list[Episode] = []
        self._warned: set[str] = set()
        self.count = 0

    @property
    def writer(self) -> DatasetWriter | EpisodeWriter | None:
        return self._into

    def add(self, episode: Episode) -> None:
        """Takes an episode that has ended."""
        metadata = {**episode.metadata, **self._metadata(_in_words_of_minari(episode))}
        plain = {name: value for name, value in metadata.items() if value is not None}
        episode = replace(
            episode,
            metadata={name: _plain(value) for name, value in plain.items()},
            where=f"DataCollector: episode {self.count:,}",
        )
        self._warn_of_bounds(episode)
        if isinstance(self._into, DatasetWriter):
            if self._is_own and not self._into.knows_columns:
                self._into.learn(nested(self._kinds.specs), self._about)
            self._into.write(episode)
        elif self._into is not None:
            # Named by its content: whoever plays the same episodes again, after a kill, stores none of them twice.
            name = self._into.name_of_content(episode.id)
            self._into.write_episode(episode.columns, id=name, metadata=episode.metadata)
        else:
            self._kept.append(episode)
        self.count += 1
        self._warn_of_infos()

    def write_kept(self, destination: str, about: Mapping[str, Any], options: Mapping[str, Any]) -> ConvertReport:
        """Writes the episodes in memory as a dataset, or adds them to one; keeps them where that fails."""
        if self._into is not None:
            raise ConfigError(
                "DataCollector: its episodes go somewhere already (into=); close() completes a dataset there. Leave into out to keep them for create_dataset"
            )
        if not self._kept:
            raise ConfigError("DataCollector: no episode was collected yet, so there is nothing to write")
        facts = About.of(self._about.system, {**self._about.facts, **about})
        with dataset_writer(destination, spec=nested(self._kinds.specs), about=facts, **options) as writer:
            for episode in self._kept:
                writer.write(episode)
        self._kept.clear()
        return writer.report()

    def checkpoint(self) -> int:
        if isinstance(self._into, DatasetWriter):
            return self._into.checkpoint()
        if self._into is not None:
            self._into.flush()
        return self.count

    def finish(self) -> ConvertReport | None:
        """Completes the collector's own dataset; None where it has none, or nothing was recorded."""
        if not self._is_own or not isinstance(self._into, DatasetWriter) or self._into.is_closed:
            return None
        if not self._into.episodes or not self._into.knows_columns:
            self._into.close()
            return None
        return self._into.finish()

    def leave(self) -> None:
        """Frees the place of the collector's own dataset, which is to be continued."""
        if self._is_own and isinstance(self._into, DatasetWriter):
            self._into.close()

    def _warn_of_bounds(self, episode: Episode) -> None:
        for path, which in self._kinds.values_outside(episode.columns):
            warnings.warn(f'DataCollector: "{path}" is not in its space: {which}. Told once', stacklevel=4)

    def _warn_of_infos(self) -> None:
        for path, why in self._kinds.left_out.items():
            name = f"{INFOS}/{path}"
            if name not in self._warned:
                self._warned.add(name)
                warnings.warn(f'DataCollector: "{name}" is left out ({why}). Told once', stacklevel=4)


def _listed(names: str | Collection[str] | None) -> list[str] | None:
    """As Minari writes its authors, who are a set."""
    return None if names is None else [names] if isinstance(names, str) else sorted(names)


def _plain(value: Any) -> Any:
    return value if isinstance(value, str | bytes) else np.asarray(value)[()]


def _in_words_of_minari(episode: Episode) -> dict[str, Any]:
    """An episode as Minari's callbacks get it."""
    columns = episode.columns
    steps = len(episode) - 1
    ends = np.arange(steps) == steps - 1
    is_terminal = bool(columns[IS_TERMINAL][-1])

    def below(name: str, rows: int) -> Nest:
        parts = {path: column[:rows] for path, column in columns_below(columns, name).items()}
        return parts[""] if "" in parts else nested(parts)

    return {
        "observations": below(OBSERVATION, steps + 1),
        "actions": below(ACTION, steps),
        "rewards": columns[REWARD][:-1],
        "terminations": ends & is_terminal,
        "truncations": ends & (not is_terminal),
        "infos": below(INFOS, steps + 1) if columns_under(columns, INFOS) else {},
        "total_steps": steps,
        **episode.metadata,
    }


def _make(callback: Any) -> Any:
    return callback() if isinstance(callback, type) else callback


class DataCollector(gymnasium.Wrapper):  # type: ignore[misc]  # of a library that mypy does not see
    """Records the episodes of one environment; see the module.

    An episode ends with a terminated or truncated step, or, truncated, with an early `reset` or `close`. Each reset without a seed gets one, as in
    Minari, so that every episode can be played again; `options={"minari_autoseed": False}` leaves it out.

    Args:
      env: of Gymnasium.
      into: see the module.
      step_data_callback: a `StepDataCallback`, its class, or one of Minari's.
      episode_metadata_callback: an `EpisodeMetadataCallback`, its class, or one of Minari's.
      record_infos: whether infos become columns `infos/...`.
      observation_space, action_space: of what is recorded, where a callback changes it; those of the environment by default.
      options: of `rlds2reverb.dataset_writer`, where `into` is a name: append, checkpoint_every, overwrite, restart, ...

    Raises:
      ConfigError: a space has no columns, an option makes no sense, or the place is taken.
    """

    def __init__(
        self,
        env: Any,
        into: str | DatasetWriter | EpisodeWriter | None = None,
        step_data_callback: Any = StepDataCallback,
        episode_metadata_callback: Any = EpisodeMetadataCallback,
        record_infos: bool = False,
        observation_space: Any = None,
        action_space: Any = None,
        **options: Any,
    ) -> None:
        super().__init__(env)
        self._callback, self._record_infos = _make(step_data_callback), record_infos
        self._is_plain = (
            type(self._callback) is StepDataCallback
        )  # which changes nothing, so that no step is put into a dict
        recorded, acted = observation_space or env.observation_space, action_space or env.action_space
        # Infos are a part of what is recorded in any case: the callback may add some.
        self._kinds = kinds_of(recorded, acted, True)
        self._nest, self._acts = columns_of_space(recorded), columns_of_space(acted)
        self._trajectory = OpenTrajectory(self._kinds)
        self._seed: int | None = None
        self._reset_options: dict[str, Any] = {}
        about = About.of("minari", {"env_spec": spec_json_of(env)[0]})
        self._collection = Collecting(into, self._kinds, about, _make(episode_metadata_callback), options)

    @property
    def episodes(self) -> int:
        """Episodes that have ended."""
        return self._collection.count

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """As of the environment.

        Raises:
          ConfigError: a value has another dtype or shape than those before; or no reset came before.
          InvalidEpisode: the episode that ends here is bad, and the policy is to stop.
        """
        came: tuple[Any, Any, bool, bool, dict[str, Any]] = self.env.step(action)
        observation, reward, terminated, truncated, info = came
        if self._is_plain:
            infos = info if self._record_infos else _NO_INFOS
        else:
            step = self._callback(
                env=self.env,
                obs=observation,
                info=info,
                action=action,
                rew=reward,
                terminated=terminated,
                truncated=truncated,
            )
            action, reward, observation = step["action"], step["reward"], step["observation"]
            terminated, truncated, infos = step["terminated"], step["truncated"], self._infos_of(step)
        if not self._collection.count and isinstance(reward, np.floating) and not len(self._trajectory):
            self._kinds.reward = ArraySpec((), reward.dtype)  # what the first step has, as of every other column
        self._trajectory.add(
            action if self._acts is None else self._acts(action),
            reward,
            observation if self._nest is None else self._nest(observation),
            infos,
        )
        if terminated or truncated:
            self._end(bool(terminated))
        return came

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """As of the environment, with a seed in any case; an episode that has not ended is truncated."""
        self._cut()
        is_autoseeded = options is None or options.get(AUTOSEED, True)
        passed_on = None if options is None else {key: value for key, value in options.items() if key != AUTOSEED}
        if seed is None and is_autoseeded:
            seed = secrets.randbits(63)
        observation, info = self.env.reset(seed=seed, options=passed_on)
        self._seed, self._reset_options = seed, passed_on or {}
        step = self._callback(env=self.env, obs=observation, info=info)
        recorded = step["observation"]
        self._trajectory.begin(recorded if self._nest is None else self._nest(recorded), self._infos_of(step))
        return observation, info

    def checkpoint(self) -> int:
        """Puts all episodes that have ended on disk, or waits until the server has confirmed them; returns their number."""
        return self._collection.checkpoint()

    def create_dataset(
        self,
        destination: str,
        *,
        algorithm_name: str | None = None,
        author: str | Collection[str] | None = None,
        author_email: str | Collection[str] | None = None,
        code_permalink: str | None = None,
        description: str | None = None,
        eval_env: str | Any = None,
        requirements: list[str] | None = None,
        **options: Any,
    ) -> ConvertReport:
        """Writes the episodes in memory as a new dataset, and begins anew; the facts are those of Minari's `create_dataset`.

        Args:
          destination: as of `rlds2reverb.convert`.
          eval_env: an environment, its spec, or its id, for `recover_environment(eval_env=True)`.
          options: of `rlds2reverb.dataset_writer`.

        Raises:
          ConfigError: nothing was collected, episodes go somewhere else (`into`), or the place is taken. The episodes stay.
        """
        self._cut()
        if isinstance(eval_env, str):
            eval_env = gymnasium.spec(eval_env)
        facts = {
            "algorithm_name": algorithm_name,
            "author": _listed(author),
            "author_email": _listed(author_email),
            "code_permalink": code_permalink,
            "description": description,
            "eval_env_spec": None if eval_env is None else getattr(eval_env, "spec", eval_env).to_json(),
            "requirements": requirements,
        }
        return self._collection.write_kept(destination, facts, options)

    def add_to_dataset(self, destination: str, **options: Any) -> ConvertReport:
        """Adds the episodes in memory to a dataset, or makes it; raises as `create_dataset`. Those that it has are left out, and counted."""
        self._cut()
        return self._collection.write_kept(destination, {}, {"append": True, **options})

    def close(self) -> None:
        """Closes the environment, and completes the dataset that the collector writes; an episode that has not ended is truncated."""
        try:
            self._cut()
            self._collection.finish()
        finally:
            self._collection.leave()  # where the last episode was refused
            super().close()

    def __exit__(self, *error: Any) -> None:
        """As `close`; after an error, the dataset stays unfinished on disk, and the next collector goes on with it."""
        if error[0] is None:
            self.close()
            return
        self._trajectory.forget()
        self._collection.leave()
        super().close()

    def _infos_of(self, step: Mapping[str, Any]) -> dict[str, Any]:
        info = dict(step["info"]) if self._record_infos else {}
        return info | {key: value for key, value in step.items() if key not in _STEP_KEYS}

    def _cut(self) -> None:
        if self._trajectory.is_open and len(self._trajectory):
            self._end(False)
        self._trajectory.forget()

    def _end(self, is_terminal: bool) -> None:
        metadata: dict[str, Any] = {} if self._seed is None else {"seed": np.uint64(self._seed)}
        if self._reset_options:
            metadata["options"] = json.dumps(self._reset_options, default=str, sort_keys=True)
        self._seed, self._reset_options = None, {}
        self._collection.add(self._trajectory.end(is_terminal, metadata))


class VectorDataCollector(gymnasium.vector.VectorWrapper):  # type: ignore[misc]
    """Records the episodes of a vector of environments, each by itself, in the order in which they end; see the module.

    No step is lost or doubled where an environment begins anew, in any of Gymnasium's autoreset modes.

    Args:
      env: a vector of environments.
      into: see the module.
      episode_metadata_callback: an `EpisodeMetadataCallback`, or its class.
      record_infos: whether infos become columns `infos/...`.
      options: of `rlds2reverb.dataset_writer`, where `into` is a name.
    """

    def __init__(
        self,
        env: Any,
        into: str | DatasetWriter | EpisodeWriter | None = None,
        episode_metadata_callback: Any = EpisodeMetadataCallback,
        record_infos: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(env)
        self._kinds = kinds_of(env.single_observation_space, env.single_action_space, record_infos)
        self._nest, self._acts = (
            columns_of_space(env.single_observation_space),
            columns_of_space(env.single_action_space),
        )
        self._trajectories = OpenTrajectories(self._kinds, env.num_envs, mode_of(env), self._nest)
        single = next(iter(getattr(env.unwrapped, "envs", ())), env)
        about = About.of("minari", {"env_spec": spec_json_of(single)[0]})
        self._collection = Collecting(into, self._kinds, about, _make(episode_metadata_callback), options)

    @property
    def episodes(self) -> int:
        """Episodes that have ended."""
        return self._collection.count

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """As of the vector; open episodes of the environments that are reset are truncated."""
        mask = None if options is None else options.get("reset_mask")
        self._take(self._trajectories.cut(mask))
        observations, infos = self.env.reset(seed=seed, options=None if options is None else dict(options))
        self._trajectories.reset(self._nested(observations), infos, mask)
        return observations, infos

    def step(self, actions: Any) -> tuple[Any, Any, Array, Array, dict[str, Any]]:
        """As of the vector; raises as `DataCollector.step`."""
        observations, rewards, terminated, truncated, infos = self.env.step(actions)
        acted = actions if self._acts is None else self._acts(actions)
        self._take(self._trajectories.step(acted, self._nested(observations), rewards, terminated, truncated, infos))
        return observations, rewards, terminated, truncated, infos

    def checkpoint(self) -> int:
        """As `DataCollector.checkpoint`."""
        return self._collection.checkpoint()

    def create_dataset(self, destination: str, **options: Any) -> ConvertReport:
        """Writes the episodes in memory as a new dataset; `options` of `rlds2reverb.dataset_writer`. Raises as `DataCollector.create_dataset`."""
        self._take(self._trajectories.cut())
        return self._collection.write_kept(destination, {}, options)

    def add_to_dataset(self, destination: str, **options: Any) -> ConvertReport:
        """As `DataCollector.add_to_dataset`."""
        return self.create_dataset(destination, **{"append": True, **options})

    def __enter__(self) -> VectorDataCollector:
        return self

    def __exit__(self, *error: Any) -> None:
        """As `DataCollector.__exit__`."""
        if error[0] is None:
            self.close()
            return
        self._trajectories.forget()
        self._collection.leave()
        super().close()

    def close(self, **kwargs: Any) -> None:
        """As `DataCollector.close`."""
        try:
            self._take(self._trajectories.cut())
            self._collection.finish()
        finally:
            self._collection.leave()
            super().close(**kwargs)

    def _nested(self, observations: Any) -> Nest:
        return observations if self._nest is None else self._nest(observations)

    def _take(self, ended: Any) -> None:
        for trajectory in ended:
            self._collection.add(episode_of(trajectory.columns, trajectory.is_terminal, {}, trajectory.faults))
