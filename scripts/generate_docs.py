"""Writes the generated parts of docs/: everything between `<!-- generated: NAME -->` and `<!-- end -->`, the views' pictures, and the
runbook as a page of the service.

`python scripts/generate_docs.py` writes them; `--check` exits 1 when one is stale.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click
import msgspec
from replay_server.config import ServerConfig
from replay_server.metrics import METRICS
from replay_server.status import TableStatus

from rlds2reverb import cli
from rlds2reverb.cli.documents import DOCUMENTS, schema_of
from rlds2reverb.conversion import job, report
from rlds2reverb.formats.registry import DESTINATIONS, SOURCES
from rlds2reverb.prepare.options import CHOICES, HELP
from rlds2reverb.prepare.problems import CODES
from rlds2reverb.push.options import option_fields

DOCS = Path(__file__).parent.parent / "docs"
_WIDTH = 100


def codes_table() -> str:
    """Every problem code: meaning, advice, repairable."""
    rows = ["| code | meaning | advice | `repair` mends it |", "| --- | --- | --- | --- |"]
    advice = {(False, False): "", (True, False): "yes", (True, True): "notice"}
    for name, code in CODES.items():
        rows.append(
            f"| `{name}` | {code.meaning} | {advice[code.is_advice, code.is_of_dataset]} | {'yes' if code.is_repairable else ''} |"
        )
    return "\n".join(rows)


def options_table() -> str:
    """Every option of a push: its name in Python and on the command line, its default, its help."""
    rows = ["| `Client.push` | `rlds2reverb push` | default | meaning |", "| --- | --- | --- | --- |"]
    spelled = {parameter.name: parameter.opts[0] for parameter in _command("push").params}
    for field in option_fields():
        values = f" One of {', '.join(field.metadata[CHOICES])}." if field.metadata[CHOICES] else ""
        default = f"`{field.default!r}`"
        rows.append(f"| `{field.name}` | `{spelled[field.name]}` | {default} | {field.metadata[HELP]}{values} |")
    return "\n".join(rows)


def destinations_table() -> str:
    """Every format that can be written."""
    return DESTINATIONS.table("writes")


def losses_table() -> str:
    """What each destination cannot hold; first what none is given."""
    modules = {one.scheme: importlib.import_module(f"rlds2reverb.formats.{one.scheme}").LOSSES for one in DESTINATIONS}
    return report.table({"any": job.LOSSES, **modules})


def cli_reference() -> str:
    """The exit codes, and the help of every command."""
    exit_codes = (cli.__doc__ or "").partition("\n\n")[2].strip()
    commands = (_help(_command(name), f"rlds2reverb {name}") for name in cli.COMMANDS)
    return "\n\n".join(["## Exit codes", exit_codes, _help(cli.cli, "rlds2reverb"), *commands])


def json_reference() -> str:
    """Every document that a command prints with --json: its members, one row each. Objects of several documents stand at the end, once."""
    schemas = {name: schema_of(name) for name in sorted(DOCUMENTS)}
    uses = Counter(name for schema in schemas.values() for name in schema["$defs"])
    shared = {name: one for schema in schemas.values() for name, one in schema["$defs"].items() if uses[name] > 1}
    parts = []
    for command, schema in schemas.items():
        forms = "; or ".join(_kind(one) for one in schema["anyOf"])
        title = f"## rlds2reverb {command}\n\n{schema['description']} The document is {forms}."
        own = {name: one for name, one in schema["$defs"].items() if uses[name] == 1}
        parts.append(_definitions(title, own))
    return "\n\n".join([*parts, _definitions("## Shared parts", dict(sorted(shared.items())))])


def config_reference() -> str:
    """Every part of a server's config: its keys, one row each, as the classes have them that the file is decoded to."""
    parts = msgspec.json.schema(ServerConfig)["$defs"]
    whole = parts["ServerConfig"]["properties"]
    titles = dict.fromkeys(parts, "The file")
    titles |= {_referred(one.get("items", one)): key for key, one in whole.items()}
    titles |= {name: one["properties"]["kind"]["enum"][0] for name, one in parts.items() if "kind" in one["properties"]}
    return "\n\n".join(_config_part(titles[name], one, titles) for name, one in parts.items())


def metrics_table() -> str:
    """Every metric of a server, beside those of its process."""
    rows = ["| metric | kind | labels | value |", "| --- | --- | --- | --- |"]
    for metric in METRICS:
        name = metric.name + ("_total" if metric.kind == "counter" else "")
        rows.append(f"| `{name}` | {metric.kind} | {', '.join(f'`{one}`' for one in metric.labels)} | {metric.help} |")
    return "\n".join(rows)


def table_status_reference() -> str:
    """The fields of a table in /status.json."""
    parts = msgspec.json.schema(TableStatus)["$defs"]
    for one in parts.values():
        one["description"], meanings = _docstring(one["description"])
        for key, member in one["properties"].items():
            member.setdefault("description", meanings.get(key, ""))
    return _definitions("", parts).strip()


def _docstring(text: str) -> tuple[str, dict[str, str]]:
    """What a docstring says, and what it says of each attribute."""
    about, _, listed = inspect.cleandoc(text).partition("\n\nAttributes:\n")
    found = re.findall(r"^  (\w+): (.*(?:\n    .*)*)", listed, re.MULTILINE)
    return " ".join(about.split()), {key: " ".join(words.split()) for key, words in found}


def _referred(schema: Mapping[str, Any]) -> str:
    return str(schema.get("$ref", "")).rpartition("/")[2]


def _config_part(title: str, one: Mapping[str, Any], titles: Mapping[str, str]) -> str:
    """One class: what it is, and its keys."""
    about, meanings = _docstring(one["description"])
    meanings = {key: re.sub(r"\bNone\b", "null", words) for key, words in meanings.items()}
    rows = ["| key | value | default | meaning |", "| --- | --- | --- | --- |"]
    for key, schema in one["properties"].items():
        is_section = bool(_referred(schema))
        default = "" if is_section else f"`{json.dumps(schema['default'])}`" if "default" in schema else "needed"
        rows.append(f"| `{key}` | {_config_value(schema, titles)} | {default} | {meanings.get(key, '')} |")
    return "\n\n".join([f"## {title}", about, "\n".join(rows)])


def _config_value(schema: Mapping[str, Any], titles: Mapping[str, str]) -> str:
    """What a key takes, in words, with its bounds."""
    if "anyOf" in schema:
        return " or ".join(_config_value(one, titles) for one in schema["anyOf"])
    if name := _referred(schema):
        return f"[{titles[name]}](#{titles[name]})"
    if "enum" in schema:
        return ", ".join(f"`{one}`" for one in schema["enum"])
    if schema.get("type") == "array":
        return f"list of {_config_value(schema['items'], titles)}"
    bounds = [f"{words} {schema[name]:,g}" for name, words in _BOUNDS.items() if abs(schema.get(name, _ANY)) < _ANY]
    return " ".join([schema.get("type", "anything"), *bounds])


_BOUNDS = {"minimum": "from", "exclusiveMinimum": "above", "maximum": "to"}
_ANY = 1e9
"""A bound from here on is that of a dtype or a clock, not one that a reader would meet."""


def _definitions(title: str, definitions: Mapping[str, Any]) -> str:
    return "\n\n".join([title, *(_definition(name, one) for name, one in definitions.items())])


def _definition(name: str, one: Mapping[str, Any]) -> str:
    head = f"**{name}**: {one.get('description', '')}".rstrip(": ")
    rows = ["| member | type | meaning |", "| --- | --- | --- |"]
    for member, value in one["properties"].items():
        absent = "" if member in one.get("required", ()) else ", may be absent"
        rows.append(f"| `{member}` | {_kind(value)}{absent} | {value.get('description', '')} |")
    table = "\n".join(rows)
    return f"{head}\n\n{table}"


def _kind(schema: Mapping[str, Any]) -> str:
    """The type of a value in words."""
    if "$ref" in schema:
        return f"*{schema['$ref'].rpartition('/')[2]}*"
    if "anyOf" in schema:
        return " or ".join(
            sorted(map(_kind, schema["anyOf"]), key="null".__eq__)
        )  # its order depends on the version of msgspec
    if "enum" in schema:
        return ", ".join(f"`{one}`" for one in schema["enum"])
    kind = schema["type"]
    if kind == "array":
        return f"array of {_kind(schema['items'])}"
    if kind == "object" and isinstance(schema.get("additionalProperties"), Mapping):
        return f"name -> {_kind(schema['additionalProperties'])}"
    return str(kind)


def _command(name: str) -> click.Command:
    command = cli.cli.get_command(click.Context(cli.cli), name)
    assert command is not None  # the table names only commands that exist
    return command


def _help(command: click.Command, path: str) -> str:
    context = click.Context(command, info_name=path, max_content_width=_WIDTH, terminal_width=_WIDTH)
    context.help_option_names = ["-h", "--help"]
    return f"## {path}\n\n```\n{command.get_help(context).strip()}\n```"


SECTIONS: dict[str, tuple[str, Callable[[], str]]] = {
    "codes": ("validation.md", codes_table),
    "options": ("cli.md", options_table),
    "cli": ("cli.md", cli_reference),
    "json": ("json.md", json_reference),
    "config": ("reference/config.md", config_reference),
    "metrics": ("reference/metrics.md", metrics_table),
    "table-status": ("reference/metrics.md", table_status_reference),
    "destinations": ("convert.md", destinations_table),
    "losses": ("convert.md", losses_table),
    "sources": ("datasets.md", SOURCES.table),
}
"""Section -> page and what writes it."""


def render(name: str) -> tuple[Path, str, str]:
    """A section's page, its text now, and its text as it should be."""
    page, write = SECTIONS[name]
    now = (DOCS / page).read_text(encoding="utf-8")
    pattern = re.compile(rf"(<!-- generated: {name} -->\n).*?(<!-- end -->)", re.DOTALL)
    return DOCS / page, now, pattern.sub(lambda match: f"{match[1]}{write()}\n{match[2]}", now)


def wanted_files() -> Iterator[tuple[Path, str]]:
    """Every file that is generated, wholly or in part, and its text as it should be."""
    import draw_readme  # beside this script
    import draw_views
    import render_runbook

    for name in SECTIONS:
        path, _, wanted = render(name)
        yield path, wanted
    for name, picture in draw_views.PICTURES.items():
        yield DOCS / "views" / f"{name}.svg", draw_views.draw(picture)
    yield render_runbook.TARGET, render_runbook.wanted()
    for name, draw in draw_readme.PICTURES.items():
        yield DOCS / "pictures" / f"{name}.svg", draw()


def main() -> None:
    """Writes or checks every file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when a file is stale")
    check = parser.parse_args().check
    stale = []
    for path, wanted in wanted_files():
        if not path.exists() or path.read_text(encoding="utf-8") != wanted:
            stale.append(path.name)
            if not check:
                path.write_text(wanted, encoding="utf-8")
    if stale:
        sys.stderr.write(f"{'stale' if check else 'written'}: {', '.join(stale)}\n")
    sys.exit(bool(stale) and check)


if __name__ == "__main__":
    main()
