"""The config: strict, overridden in one order, and every refusal says where."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from replay_server.config import ServerConfig, check, decode, load, table_configs
from replay_server.library import reverb_table, table_info
from replay_server.tables import SELECTORS, MinSize, Prefill, Queue, SampleToInsertRatio, TableConfig

from rlds2reverb.errors import ConfigError, Rlds2ReverbError, SourceError, ViewError
from rlds2reverb.specs import flatten
from tests.support.raising import error_of, outcome_of

pytestmark = [pytest.mark.server, pytest.mark.timeout(120)]

CONFIGS = sorted((Path(__file__).parents[3] / "configs").glob("*.yaml"))

REFUSED = {
    "tables: [{name: a}]\nport: 1": "unknown field `port`",
    "tables: [{name: a, size: 3}]": r"unknown field `size` - at `\$\.tables\[0\]`",
    "tables: [{name: a, max_sise: 3}]": r'unknown field `max_sise` .*; did you mean "max_size"\?$',
    "tables: [{name: a}]\nhttp: {prot: 1}": r'unknown field `prot` - at `\$\.http`; .*; did you mean "port"\?$',
    "tables: [{name: a}]\ngrpc: {host: x}": r"unknown field `host` - at `\$\.grpc`",
    "tables: [{name: a}]\nlog: {colour: x}": r"unknown field `colour` - at `\$\.log`",
    "tables: [{name: a}]\ncheckpoints: {every: 1}": r"unknown field `every` - at `\$\.checkpoints`",
    "tables: [{name: a, rate_limiter: {kind: queue, size: 1, x: 1}}]": r"`x` - at `\$\.tables\[0\]\.rate_limiter`",
    "tables: [{name: a, sampler: {kind: prioritized, x: 1}}]": r"unknown field `x` - at `\$\.tables\[0\]\.sampler`",
    "tables: [{name: a}, {name: b, max_size: lots}]": r"Expected `int`, got `str` - at `\$\.tables\[1\]\.max_size`",
    "tables: [{name: a, max_size: 0}]": r">= 1 - at `\$\.tables\[0\]\.max_size`",
    "tables: [{name: a, max_size: 2147483648}]": r"<= 2147483647 - at `\$\.tables\[0\]\.max_size`",
    "tables: [{name: a, max_size: 1.5}]": r"Expected `int`, got `float` - at `\$\.tables\[0\]\.max_size`",
    "tables: [{name: a, max_size: '5'}]": r"Expected `int`, got `str` - at `\$\.tables\[0\]\.max_size`",
    "tables: [{name: a, max_size: true}]": r"Expected `int`, got `bool` - at `\$\.tables\[0\]\.max_size`",
    "tables: [{name: a, max_times_sampled: -1}]": r">= 0 - at `\$\.tables\[0\]\.max_times_sampled`",
    "tables: [{name: a, max_times_sampled: 1.0e+30}]": r"at `\$\.tables\[0\]\.max_times_sampled`",
    "tables: [{name: a, sampler: newest}]": r"'newest' - at `\$\.tables\[0\]\.sampler`",
    "tables: [{name: a, sampler: {kind: uniform}}]": r"'uniform' - at `\$\.tables\[0\]\.sampler\.kind`",
    "tables: [{name: a, sampler: {kind: prioritized, exponent: -1}}]": r"at `\$\.tables\[0\]\.sampler\.exponent`",
    "tables: [{name: a, sampler: {kind: prioritized, exponent: .nan}}]": r"at `\$\.tables\[0\]\.sampler\.exponent`",
    "tables: [{name: a, sampler: {kind: prioritized, exponent: .inf}}]": r"at `\$\.tables\[0\]\.sampler\.exponent`",
    "tables: [{name: a, rate_limiter: {kind: none}}]": r"'none' - at `\$\.tables\[0\]\.rate_limiter\.kind`",
    "tables: [{name: a, rate_limiter: {kind: queue}}]": r"`size` - at `\$\.tables\[0\]\.rate_limiter`",
    "tables: [{name: a, rate_limiter: {kind: stack, size: 1.0e+30}}]": r"at `\$\.tables\[0\]\.rate_limiter\.size`",
    "tables: [{name: a, rate_limiter: {kind: prefill, items: 1, then: {kind: queue, size: 1}}}]": (
        r"'queue' - at `\$\.tables\[0\]\.rate_limiter\.then\.kind`"
    ),
    "tables: [{name: ''}]": r"at `\$\.tables\[0\]\.name`",
    "tables: [{max_size: 3}]": r"`name` - at `\$\.tables\[0\]`",
    "tables: [{name: a}, {name: b}, {name: a}]": r'a table named "a" stands there already - at `\$\.tables\[2\]\.name`',
    "tables: [{name: a}]\ngrpc: {port: -1}": r">= 0 - at `\$\.grpc\.port`",
    "tables: [{name: a}]\ngrpc: {port: 70000}": r"<= 65535 - at `\$\.grpc\.port`",
    "tables: [{name: a}]\nhttp: {host: 1}": r"Expected `str`, got `int` - at `\$\.http\.host`",
    "tables: [{name: a}]\nlog: {format: xml}": r"'xml' - at `\$\.log\.format`",
    "tables: [{name: a}]\ncheckpoints: {keep: 0}": r">= 1 - at `\$\.checkpoints\.keep`",
    "tables: [{name: a}]\ncheckpoints: {folder: ''}": r"at `\$\.checkpoints\.folder`",
    "tables: [{name: a}]\ncheckpoints: {every_seconds: 0}": r"> 0.0 - at `\$\.checkpoints\.every_seconds`",
    "tables: [{name: a}]\ncheckpoints: {every_seconds: .inf}": r"at `\$\.checkpoints\.every_seconds`",
    "tables: [{name: a}]\ncheckpoints: {unfit_tables: drop}": r"'drop' - at `\$\.checkpoints\.unfit_tables`",
    "tables: []": r"length >= 1 - at `\$\.tables`",
    "tables: 5": r"Expected `array`, got `int` - at `\$\.tables`",
    "": "missing required field `tables`",
    "just text": "Expected `object`, got `str`",
    "1: 2": r"Expected `str` - at `key` in `\$`",
    "tables: [{name: a}]\ntables: [{name: b}]": 'not YAML: key "tables" stands twice',
    "tables: [{name: a, max_size: 1, max_size: 2}]": 'not YAML: key "max_size" stands twice',
    "tables: [": "not YAML: while parsing",
    "\x00": "not YAML: ",
    "a: !!python/object:os.system x": "not YAML: could not determine a constructor",
    "a: 2026-99-99": "unknown field `a`",
    "tables: [{name: a}]\nhttp: {port: 2026-99-99}": r"Expected `int`, got `str` - at `\$\.http\.port`",
    "tables: [{name: a}]\nhttp: {port: 2:13}": r"Expected `int`, got `str` - at `\$\.http\.port`",
    "a: !!int many": "not YAML: expected a whole number",
    "a: !!bool maybe": "not YAML: ",
    "a: !!timestamp soon": "not YAML: ",
    "!!map [a, b]": "not YAML: expected a mapping node, but found sequence",
    "a: " + 5000 * "9": "not YAML: ",
    50_000 * "[": "not YAML: more than 64 lists and mappings within one another",
    "tables: [{name: a, signature: &a [*a]}]": r"not YAML: an alias stands within itself \(line 1",
}

REFUSED_TABLES = {
    "tables: [{name: a, signature: 7}]": r"\$\.tables\[0\]\.signature: expected a leaf",
    "tables: [{name: a}, {name: b, signature: {x: [float32]}}]": r'\$\.tables\[1\]\.signature\.x\[0\]: .* got "float32"',
    "tables: [{name: a, signature: {x/y: 'int8[]', x: {y: 'int8[]'}}}]": (
        r'\$\.tables\[0\]\.signature: two columns are both named "x/y"'
    ),
    "tables: [{name: a, signature: {from_dataset: x, veiw: y}}]": r"\$\.tables\[0\]\.signature: .*unknown field `veiw`",
    "tables: [{name: a, signature: {from_dataset: 5}}]": r"\$\.tables\[0\]\.signature: Expected `str`, got `int`",
    "tables: [{name: a, sampler: {kind: prioritized}, remover: {kind: prioritized, exponent: 2}}]": (
        r"\$\.tables\[0\]\.remover\.exponent: sampler and remover share one exponent, got \[0\.8, 2\.0\]"
    ),
    **{
        f"tables: [{{name: a, {key}: {value}, rate_limiter: {{kind: {kind}, size: 4}}}}]": (
            rf"\$\.tables\[0\]\.{key}: a {kind} has its own; leave it out"
        )
        for kind in ("queue", "stack")
        for key, value in {"sampler": "lifo", "remover": "lifo", "max_size": 4, "max_times_sampled": 1}.items()
    },
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "config.yaml"


def written(file: Path, text: str) -> Path:
    file.write_text(text)
    return file


@pytest.mark.parametrize(("text", "message"), REFUSED.items(), ids=lambda value: value[:60])
def test_what_makes_no_sense_is_refused_with_its_file_and_path(file: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        load(written(file, text), (), {})
    assert str(caught.value).startswith(f"{file}: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("text", "message"), REFUSED_TABLES.items(), ids=lambda value: value[:60])
def test_a_table_that_makes_no_sense_is_refused_with_its_path(file: Path, text: str, message: str) -> None:
    config = load(written(file, text), (), {})
    with pytest.raises(ConfigError, match=f"^{message}"):
        table_configs(config)


@pytest.mark.parametrize(
    ("signature", "kind", "message"),
    [
        ("{from_dataset: 'bundled:cartpole', map: 'nowhere:f'}", ConfigError, "map .*nowhere:f.*: cannot be imported"),
        ("{from_dataset: nonsense}", SourceError, 'source "nonsense": expected SCHEME:NAME'),
        (
            "{from_dataset: 'bundled:half_cheetah', encoded: all}",
            SourceError,
            "bundled:half_cheetah: encoded: has no step columns",
        ),
        (
            "{from_dataset: 'bundled:half_cheetah', encode: png}",
            ConfigError,
            'transform: encode: "all": no image that png could hold',
        ),
        ("{from_dataset: x, encode: {a: gif}}", ConfigError, 'transform: encode: "a": .gif.: expected png'),
        ("{from_dataset: x, view: two_stp}", ViewError, 'view "two_stp": .*; did you mean "two_step"'),
        (
            "{from_dataset: x, transform: {drp: action}}",
            ConfigError,
            'transform: no option "drp"; .*; did you mean "drop"',
        ),
    ],
)
def test_a_dataset_or_a_view_that_makes_no_sense_is_refused_with_its_path(
    file: Path, signature: str, kind: type[Exception], message: str
) -> None:
    config = load(written(file, f"tables: [{{name: a}}, {{name: b, signature: {signature}}}]"), (), {})
    with pytest.raises(kind, match=rf"^\$\.tables\[1\]\.signature: {message}"):
        table_configs(config)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    for path in (tmp_path / "missing.yaml", tmp_path):
        with pytest.raises(ConfigError, match=f"^{path}: cannot be read .*--config"):
            load(path)
    (tmp_path / "bytes").write_bytes(b"tables: \xff")
    with pytest.raises(ConfigError, match=r"cannot be read .*utf-8"):
        load(tmp_path / "bytes")


def test_the_least_config_has_the_defaults(file: Path) -> None:
    config = load(written(file, "tables: [{name: a}]"), (), {})
    assert config == decode(
        {"tables": [{"name": "a"}], "checkpoints": {"folder": str(file.parent / "checkpoints")}}, ""
    )
    assert (config.grpc.port, config.http.host, config.http.port) == (8000, "127.0.0.1", 8080)
    assert (config.checkpoints.every_seconds, config.checkpoints.keep, config.checkpoints.on_shutdown) == (600, 3, True)
    assert table_configs(config) == [TableConfig("a")]


def test_the_shift_of_a_view_is_what_a_file_for_it_says(file: Path) -> None:
    """Not -180, which is -3:0 to base 60."""
    view = "{view: requirements, requirements: {obs: {shift: -3:0}}}"
    text = f"tables: [{{name: a, signature: {{from_dataset: 'bundled:half_cheetah', view: {view}}}}}]"
    [table] = table_configs(load(written(file, text), (), {}))
    assert str(flatten(table.signature)["obs"]) == "float32[4, 17]"


def test_a_merge_key_is_yaml(file: Path) -> None:
    text = "tables: [&a {name: a, max_size: 7, sampler: lifo}, {<<: *a, name: b, max_size: 8}]"
    assert [(t.name, t.max_size, t.sampler) for t in load(written(file, text), (), {}).tables] == [
        ("a", 7, "lifo"),
        ("b", 8, "lifo"),
    ]


def test_flags_go_before_the_environment_and_that_before_the_file(file: Path) -> None:
    written(file, "tables: [{name: a, max_size: 5}]\nhttp: {port: 1, host: file}\ngrpc: {port: 1}")
    environment = {
        "REPLAY__HTTP__PORT": "2",
        "REPLAY__GRPC__PORT": "2",
        "REPLAY__TABLES__0__MAX_SIZE": "2",
        "HOME": "/",
    }
    config = load(file, ["http.port=3", "tables.0.sampler={kind: prioritized, exponent: 0.5}"], environment)
    assert (config.http.port, config.grpc.port, config.http.host) == (3, 2, "file")
    [table] = table_configs(config)
    assert (table.max_size, table.sampler, table.priority_exponent) == (2, "prioritized", 0.5)
    assert load(file, ["http.port=3", "http.port=4"], {}).http.port == 4


def test_an_override_makes_the_sections_on_its_way(file: Path) -> None:
    written(file, "tables: [{name: a}]")
    config = load(file, ["checkpoints.every_seconds=null"], {"REPLAY__CHECKPOINTS__FOLDER": "elsewhere"})
    assert (config.checkpoints.every_seconds, config.checkpoints.folder) == (None, "elsewhere")


def test_relative_paths_of_a_file_are_taken_from_its_folder_and_those_of_flags_from_where_one_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "configs").mkdir()
    paths = "checkpoints: {folder: kept, start_from: ../other}\nhttp: {token_file: token}"
    written(tmp_path / "configs" / "server.yaml", f"tables: [{{name: a}}]\n{paths}")
    written(tmp_path / "configs" / "short.yaml", "tables: [{name: a}]")
    place = tmp_path / "configs"
    for here in (tmp_path, place, Path("/")):
        monkeypatch.chdir(here)
        config = load(Path(os.path.relpath(place / "server.yaml")), (), {})
        assert (config.checkpoints.folder, config.http.token_file) == (str(place / "kept"), str(place / "token"))
        assert config.checkpoints.start_from == str(place / ".." / "other")
    short = place / "short.yaml"
    assert load(short, (), {}).checkpoints.folder == str(place / "checkpoints")
    assert load(short, ["checkpoints={keep: 2}"], {}).checkpoints.folder == str(place / "checkpoints")
    assert load(short, ["checkpoints.folder=kept"], {}).checkpoints.folder == "kept"
    (tmp_path / "link.yaml").symlink_to(short)  # the place of the name that was given: a link's target may change
    assert load(tmp_path / "link.yaml", (), {}).checkpoints.folder == str(tmp_path / "checkpoints")


@pytest.mark.parametrize(
    ("override", "message"),
    {
        "http.port": 'config.yaml: --set "http.port": expected PATH=VALUE',
        "=5": 'config.yaml: --set "=5": expected PATH=VALUE',
        "tables.1.max_size=5": 'config.yaml: --set "tables.1.max_size=5": "1": expected a number below 1',
        "tables.x.max_size=5": '"x": expected a number below 1',
        "tables.0.name.x=5": '"tables.0.name" is a value, it has no "x"',
        "http.port=[": 'config.yaml: --set "http.port=.": the value is not YAML',
        "http.port=2026-99-99": r"Expected `int`, got `str` - at `\$\.http\.port`",
        "http.port={a: 1, a: 2}": 'the value is not YAML: key "a" stands twice',
        "http.port=x": r"Expected `int`, got `str` - at `\$\.http\.port`",
        "htpp.port=1": "unknown field `htpp`",
        "http..port=1": "unknown field ``",
    }.items(),
)
def test_an_override_that_makes_no_sense_is_refused(file: Path, override: str, message: str) -> None:
    written(file, "tables: [{name: a}]")
    with pytest.raises(ConfigError, match=message):
        load(file, [override], {})


def test_what_is_refused_after_overrides_names_them_beside_the_file_and_keeps_the_token_to_itself(file: Path) -> None:
    written(file, "tables: [{name: a}]")
    with pytest.raises(ConfigError) as caught:
        load(file, ["http.token=a-secret-word", "port=0"], {"REPLAY__GRPC__PORT": "7"})
    assert str(caught.value) == (
        f'{file} with environment variable REPLAY__GRPC__PORT, --set "http.token=...", --set "port=0": '
        "Object contains unknown field `port`; there are tables, grpc, http, checkpoints, log"
    )


@pytest.mark.parametrize(
    ("text", "told"),
    {
        "tables: [{name: a}]\ngrpc: {prot: 1}": '; there are port; did you mean "port"?',
        "tables: [{name: a}]\nlog: {colour: x}": "; there are format, level",
        "tables: [{name: a, size: 3}]": '; there are name, sampler, remover, max_size, max_times_sampled, rate_limiter, signature; did you mean "max_size"?',
        "tables: [{name: a, sampler: {kind: prioritized, x: 1}}]": " - at `$.tables[0].sampler`; there are exponent",
    }.items(),
)
def test_where_a_field_is_unknown_the_known_ones_are_told(file: Path, text: str, told: str) -> None:
    written(file, text)
    with pytest.raises(ConfigError) as caught:
        load(file, (), {})
    assert str(caught.value).endswith(told)


def test_an_environment_variable_that_makes_no_sense_is_named(file: Path) -> None:
    written(file, "tables: [{name: a}]")
    with pytest.raises(ConfigError, match="environment variable REPLAY__TABLES__1__NAME: "):
        load(file, (), {"REPLAY__TABLES__1__NAME": "b"})
    with pytest.raises(ConfigError, match="unknown field ``"):
        load(file, (), {"REPLAY__": "b"})


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_every_shipped_config_loads_and_makes_tables(path: Path) -> None:
    tables = table_configs(load(path, (), {}))
    check(tables)
    assert [table_info(reverb_table(table)).name for table in tables] == [table.name for table in tables]
    for table in tables:
        reverb_table(table.filled())


def test_every_limiter_and_selector_can_be_written(file: Path) -> None:
    limiters = {
        "{kind: min_size, min_size: 3}": MinSize(min_size=3),
        "{kind: sample_to_insert_ratio, samples_per_insert: 2, error_buffer: 9}": SampleToInsertRatio(
            samples_per_insert=2.0, error_buffer=9.0
        ),
        "{kind: prefill, items: 3, then: {kind: min_size}}": Prefill(items=3, then=MinSize()),
        "{kind: queue, size: 5}": Queue(size=5),
    }
    for text, limiter in limiters.items():
        [table] = table_configs(load(written(file, f"tables: [{{name: a, rate_limiter: {text}}}]"), (), {}))
        assert table.rate_limiter == limiter
    for name in SELECTORS:
        [table] = table_configs(load(written(file, f"tables: [{{name: a, sampler: {name}, remover: {name}}}]"), (), {}))
        assert (table.sampler, table.remover) == (name, name)


def test_a_queue_and_a_stack_bring_their_selectors(file: Path) -> None:
    text = "tables: [{name: q, rate_limiter: {kind: queue, size: 4}}, {name: s, rate_limiter: {kind: stack, size: 5}}]"
    assert table_configs(load(written(file, text), (), {})) == [TableConfig.queue("q", 4), TableConfig.stack("s", 5)]


def test_a_signature_is_derived_from_a_dataset(file: Path) -> None:
    text = "tables: [{name: a, signature: {from_dataset: 'bundled:half_cheetah'}}]"
    [table] = table_configs(load(written(file, text), (), {}))
    assert str(flatten(table.signature)["observation"]) == "float32[?, 17]"


@pytest.mark.parametrize("transform", ["rename=observation:state", "{rename: {observation: state}}"])
def test_a_signature_is_derived_from_a_transformed_dataset(file: Path, transform: str) -> None:
    wanted = f"{{from_dataset: 'bundled:half_cheetah', view: 'slices:length=2', transform: {transform}}}"
    [table] = table_configs(load(written(file, f"tables: [{{name: a, signature: {wanted}}}]"), (), {}))
    assert str(flatten(table.signature)["state"]) == "float32[2, 17]"
    assert "observation" not in flatten(table.signature)


def test_a_signature_is_derived_from_a_mixture_file_with_its_view(file: Path) -> None:
    mixture = file.parent / "soup.yaml"
    mixture.write_text("{sets: ['bundled:half_cheetah'], view: 'slices:length=3'}")
    wanted = f"{{from_dataset: 'mix:{mixture}'}}"
    [table] = table_configs(load(written(file, f"tables: [{{name: a, signature: {wanted}}}]"), (), {}))
    assert flatten(table.signature)["observation"].shape == (3, 17)


def test_a_signature_is_derived_from_what_a_function_makes(file: Path) -> None:
    function = "tests.support.prepare.filtering:with_a_norm"
    wanted = f"{{from_dataset: 'bundled:half_cheetah', view: two_step, map: '{function}', transform: 'rename=observation_norm:norm'}}"
    [table] = table_configs(load(written(file, f"tables: [{{name: a, signature: {wanted}}}]"), (), {}))
    assert flatten(table.signature)["observation"].shape == (None, 17)


def known_keys() -> list[str]:
    """Keys and values of the shipped configs, so that nonsense gets past the first check."""
    found: set[str] = {"view", "from_dataset", "!namedtuple", "fields", "class", "9", "minimum", "maximum", "items"}

    def walk(value: Any) -> None:
        if isinstance(value, dict):
            found.update(value)
        for child in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            walk(child)
        if isinstance(value, str):
            found.add(value)

    for path in CONFIGS:
        walk(yaml.safe_load(path.read_text()))
    return sorted(found - {"from_dataset"})


WORDS = st.sampled_from(known_keys())
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-3, 70_000)
    | st.integers()
    | st.floats()
    | st.text(max_size=4)
    | WORDS
    | st.sampled_from(["float32[2, 3]", "string[]", "int8[?]", "float32[-1]"])
)
NONSENSE = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS | SCALARS, inner, max_size=4)
)
TABLES = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "name": st.sampled_from(["a", "b"]) | NONSENSE,
            "sampler": st.sampled_from(SELECTORS) | NONSENSE,
            "remover": st.just({"kind": "prioritized"}) | NONSENSE,
            "max_size": st.integers(1, 9) | NONSENSE,
            "max_times_sampled": st.integers(0, 3) | NONSENSE,
            "signature": NONSENSE,
            "rate_limiter": st.fixed_dictionaries(
                {"kind": st.sampled_from(["min_size", "queue", "stack", "prefill", "sample_to_insert_ratio"])},
                optional={
                    **{key: st.integers(0, 5) | SCALARS for key in ("min_size", "size", "items")},
                    **{key: st.floats(0, 5) | SCALARS for key in ("samples_per_insert", "error_buffer")},
                    "then": st.just({"kind": "min_size"}) | NONSENSE,
                },
            )
            | NONSENSE,
        },
    ),
    max_size=2,
)
SECTIONS = dict.fromkeys(("grpc", "http", "checkpoints", "log"), NONSENSE)
DOCUMENTS = NONSENSE | st.fixed_dictionaries({"tables": TABLES | NONSENSE}, optional=SECTIONS)


def made(config: ServerConfig) -> list[TableConfig]:
    tables = table_configs(config)
    check(tables)
    for table in tables:
        reverb_table(table)
    return tables


@given(DOCUMENTS)
def test_any_document_is_a_config_whose_tables_reverb_takes_or_a_config_error(document: Any) -> None:
    found = outcome_of(ConfigError, lambda: made(decode(document, "any")))
    assert str(found) if isinstance(found, ConfigError) else found


@given(
    st.text() | NONSENSE.map(lambda value: yaml.dump(value)) | st.text("[]{}:,-&*!|>'\"#%@ \n\tab1<~?.", max_size=40)
)
def test_any_text_is_a_config_or_a_config_error(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    file = tmp_path_factory.getbasetemp() / "any.yaml"
    file.write_text(text, encoding="utf-8", errors="surrogatepass")
    error = error_of(ConfigError, lambda: load(file, (), {}))
    assert error is None or str(error).startswith(f"{file}: ")


@given(st.text(), st.text("abc.=0123[]{}:' \n", max_size=20))
def test_any_override_is_taken_or_a_config_error(
    tmp_path_factory: pytest.TempPathFactory, name: str, text: str
) -> None:
    file = tmp_path_factory.getbasetemp() / "one.yaml"
    file.write_text("tables: [{name: a}]")
    for overrides, environment in (([text], {}), ([f"tables.0.{text}"], {}), ([], {f"REPLAY__{name}": text})):
        error = error_of(Rlds2ReverbError, partial(load, file, overrides, environment))
        assert error is None or isinstance(error, ConfigError)


def test_no_two_shipped_configs_share_a_checkpoint_folder_or_put_one_inside_another() -> None:
    folders = [Path(load(path, environment={}).checkpoints.folder).absolute() for path in CONFIGS]
    pairs = [(folder, other) for folder in folders for other in folders if folder is not other]
    assert [pair for pair in pairs if pair[0].is_relative_to(pair[1])] == []
