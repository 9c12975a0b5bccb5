"""Writes the generated parts of docs/: everything between `<!-- generated: NAME -->` and `<!-- end -->`, the commands' pages, the views'
pictures, and the runbook as a page of the service.

`python scripts/generate_docs.py` writes them; `--check` exits 1 when one is stale.
"""

from __future__ import annotations

import argparse
import inspect
import itertools
import json
import re
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click
import msgspec
from replay_server.config import ServerConfig
from replay_server.metrics import METRICS
from replay_server.status import TableStatus

from rlds2reverb import cli
from rlds2reverb.cli import sections
from rlds2reverb.cli.documents import DOCUMENTS, schema_of
from rlds2reverb.conversion import job
from rlds2reverb.formats.registry import DESTINATIONS, SOURCES
from rlds2reverb.keywords import command_options
from rlds2reverb.prepare.problems import CODES
from rlds2reverb.push.options import PushOptions
from rlds2reverb.views import FROM_CONFIG_ONLY, PURPOSES, VIEWS

DOCS = Path(__file__).parent.parent / "docs"


def codes_list() -> str:
    """Every problem code and its meaning in one clause: those that reject an episode, advice about one, and notices of a dataset."""
    kinds = {"Problems": (False, False), "Advice": (True, False), "Advice about the dataset as a whole": (True, True)}
    parts = []
    for title, kind in kinds.items():
        parts.append(f"### {title}")
        parts.append(
            "\n".join(
                f"- `{name}`: {re.split(': |; |, as |, say', code.meaning)[0]}{' (`repair` mends it)' if code.is_repairable else ''}"
                for name, code in CODES.items()
                if (code.is_advice, code.is_of_dataset) == kind
            )
        )
    return "\n\n".join(parts)


def options_table() -> str:
    """Every option of a push: its name in Python and on the command line, its default, its help."""
    rows = ["| `Client.push` | `rlds2reverb push` | default | meaning |", "| --- | --- | --- | --- |"]
    spelled = {parameter.name: parameter.opts[0] for parameter in _command("push").params}
    for name, (option, command) in command_options(PushOptions).items():
        values = f" One of {', '.join(command.choices)}." if command.choices else ""
        rows.append(f"| `{name}` | `{spelled[name]}` | `{option.default!r}` | {command.help}{values} |")
    return "\n".join(rows)


def views_table() -> str:
    """Every view: what a learner gets by it, the heading that describes it, and its options."""
    pages = {
        name: page
        for page in sorted((DOCS / "views").glob("*.md"))
        for name in re.findall(r"^## (\w+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    }
    rows = ["| your learner wants | view | options and their defaults |", "| --- | --- | --- |"]
    for name, purpose in PURPOSES.items():
        parameters = inspect.signature(VIEWS[name]).parameters.values()
        options = [
            f"`{option.name}={str(option.default).lower()}`"
            for option in parameters
            if option.name not in ("priority", "extras")
        ]
        written = "`requirements`, from YAML or Python" if name in FROM_CONFIG_ONLY else ", ".join(options)
        rows.append(f"| {purpose} | [`{name}`](views/{pages[name].name}#{name}) | {written}{' ' if written else ''}|")
    return "\n".join(rows)


def destinations_table() -> str:
    """Every format that can be written."""
    return DESTINATIONS.table("writes")


def losses_list() -> str:
    """The codes of what each destination cannot hold; first what none can. A conversion prints what they mean."""
    formats = {f"{known.scheme}:": side.losses for known, side in DESTINATIONS.own_sides().items()}
    parts = []
    for title, losses in {"any destination:": job.LOSSES, **formats}.items():
        parts.append(f"- {title} {', '.join(f'`{code}`' for code in losses)}")
    return "\n".join(parts)


def cli_reference() -> str:
    """A table of the commands, and, once, what they share. `command_page` has each of them, `options_table` the options of a push."""
    exit_codes = (cli.__doc__ or "").partition("\n\n")[2].strip()
    rows = ["| command | what it does |", "| --- | --- |"]
    rows += [f"| [`{name}`]({_COMMANDS}/{name}.md) | {about} |" for name, about in cli.COMMANDS.items()]
    topics = [f"- `rlds2reverb help {name}`: {about}" for name, about in cli.TOPICS.items()]
    options = [
        option for name in cli.COMMANDS for option in _options(_command(name)) if option.name not in _PUSH_OPTIONS
    ]
    uses = Counter(map(_row, options))
    shared = {_row(option): option for option in options if uses[_row(option)] > 1}
    return "\n\n".join(
        [
            "## Commands",
            "\n".join(rows),
            "`rlds2reverb --debug COMMAND` shows tracebacks; `--version` prints the version.",
            "What several commands have in common:",
            "\n".join(topics),
            "## Exit codes",
            exit_codes,
            "## Shared options",
            *_tables(shared.values()),
        ]
    )


def command_page(name: str) -> str:
    """docs/commands/NAME.md: the help of a command, and where more is written."""
    command = _command(name)
    first, *rest = inspect.cleandoc(command.help or "").split("\n\n")
    examples = "\n".join(
        f"# {purpose}\n{_in_lines(line)}" for purpose, line in getattr(command, "examples", {}).items()
    )
    parts = [f"# rlds2reverb {name}", " ".join(first.split()), f"```sh\n{examples}\n```"]
    exits = re.findall(r"^\| (\d+) \| (.*) \|$", cli.__doc__ or "", re.MULTILINE)
    exits = [(code, meaning) for code, meaning in exits if int(code) in (0, *_EXITS.get(name, ()))]
    for paragraph in rest:
        if own := re.findall(r"^ +(\d+)  (.*)$", paragraph, re.MULTILINE):
            exits = own
        else:
            parts.append(" ".join(paragraph.split()))
    named = dict.fromkeys((param.metavar or "").removesuffix("...") for param in command.params)
    names = [f"{one}: {_reference(_NAMES[one])}." for one in named if one in _NAMES]
    parts.append(" ".join([f"Usage: `rlds2reverb {name} {_arguments(command)}`.", *names]))
    more = [_reference(page) for page in _GUIDES[name]]
    more += [f"[what `--json` prints](../json.md#rlds2reverb-{name})"] if name in DOCUMENTS else []
    parts.append(f"More: {', '.join(more)}.")
    if options := _options(command):
        parts += ["## Options", *_tables(options)]
    if len(exits) > 1:
        parts += [
            "## Exit codes",
            "\n".join(["| exit code | meaning |", "| --- | --- |", *map("| %s | %s |".__mod__, exits)]),
        ]
        parts.append("Those of all commands: [exit codes](../cli.md#exit-codes).")
    return "\n\n".join(parts) + "\n"


def json_reference() -> str:
    """Every document that a command prints with --json, its members in a list. Objects of several documents stand at the end, once."""
    schemas = {name: schema_of(name) for name in sorted(DOCUMENTS)}
    parts = {
        name: definition
        for schema in schemas.values()
        for name, definition in schema["$defs"].items()
        if name != _FAILED
    }
    uses = Counter(name for schema in schemas.values() for name in schema["$defs"])
    for name, (one, other) in _COMMON.items():
        theirs = parts[other]["properties"]
        common = {member: value for member, value in parts[one]["properties"].items() if theirs.get(member) == value}
        about = f"What {one} and {other} have in common."
        parts[name] = {"description": about, "properties": common, "required": list(common)}
    texts = {name: _definition(name, definition, parts) for name, definition in parts.items()}
    pages = []
    for command, schema in schemas.items():
        forms = [form for form in schema["anyOf"] if _referred(form) != _FAILED]
        kinds = " or ".join(map(_kind, forms))
        pages.append(f"## rlds2reverb {command}\n\n{schema['description'].rstrip('.')}: {kinds}.")
        own = [name for name in schema["$defs"] if name in texts and uses[name] == 1]
        root = _referred(forms[0])
        if len(forms) == 1 and root in own:  # the line above says what it is
            texts[root] = _definition(root, {**parts[root], "description": ""}, parts)
        pages += [texts[name] for name in own]
    shared = [texts[name] for name in sorted(texts) if uses[name] != 1]
    return "\n\n".join([*pages, "## Shared objects", *shared])


def config_reference() -> str:
    """Every section of a server's config: its keys in a list, as the classes have them that the file is decoded to."""
    parts = msgspec.json.schema(ServerConfig)["$defs"]
    whole = parts["ServerConfig"]["properties"]
    del parts["ServerConfig"]  # the page names its sections
    titles = {_referred(part.get("items", part)): key for key, part in whole.items()}
    titles |= {
        name: part["properties"]["kind"]["enum"][0] for name, part in parts.items() if "kind" in part["properties"]
    }
    titles = {name: titles.get(name, name.lower()) for name in parts}
    return "\n\n".join(_config_part(titles[name], part, titles) for name, part in parts.items())


def metrics_table() -> str:
    """Every metric of a server, beside those of its process."""
    rows = ["| metric | value |", "| --- | --- |"]
    for metric in METRICS:
        name = metric.name + ("_total" if metric.kind == "counter" else "")
        labels = f"{{{','.join(metric.labels)}}}" if metric.labels else ""
        rows.append(f"| `{name}{labels}` | {metric.help} |")
    return "\n".join(rows)


def table_status_reference() -> str:
    """The fields of a table in /status.json."""
    parts = msgspec.json.schema(TableStatus)["$defs"]
    for part in parts.values():
        part["description"], meanings = _docstring(part["description"])
        for key, member in part["properties"].items():
            member.setdefault("description", _in_files(meanings.get(key, "")))
    return "\n\n".join(_definition(name, definition, parts) for name, definition in parts.items())


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
    rows = []
    for key, schema in one["properties"].items():
        if key == "kind":
            about = f"`kind: {title}`. {about}"
            continue
        default = f"; default `{json.dumps(schema['default'])}`" if "default" in schema else "; required"
        facts = _config_value(schema, titles) + ("" if _referred(schema) else default)
        meaning = _in_files(meanings.get(key, ""))
        rows.append(f"- `{key}`: {facts}. {meaning[:1].upper()}{meaning[1:]}".rstrip(". ") + ".")
    return _linked("\n\n".join([f"## {title}", about, "\n".join(rows)]), "../")


def _in_files(meaning: str) -> str:
    """As a docstring says it, in the words of YAML and JSON."""
    return re.sub(r"\bNone\b", "null", meaning)


def _config_value(schema: Mapping[str, Any], titles: Mapping[str, str]) -> str:
    """What a key takes, in words, with its bounds."""
    if "anyOf" in schema:
        return " or ".join(_config_value(form, titles) for form in schema["anyOf"])
    if name := _referred(schema):
        return f"[{titles[name]}](#{titles[name]})"
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if schema.get("type") == "array":
        return f"list of {_config_value(schema['items'], titles)}"
    bounds = [f"{words} {schema[name]:,g}" for name, words in _BOUNDS.items() if abs(schema.get(name, _ANY)) < _ANY]
    return " ".join([schema.get("type", "anything"), *bounds])


_BOUNDS = {"minimum": "from", "exclusiveMinimum": "above", "maximum": "to"}
_ANY = 1e9
"""A bound from here on is that of a dtype or a clock, not one that a reader would meet."""


def _definition(name: str, one: Mapping[str, Any], parts: Mapping[str, Mapping[str, Any]]) -> str:
    """An object: what it is, and its members; those of another object that it has all of are named by that."""
    members = dict(one["properties"])
    whole = []
    for other, part in parts.items():
        theirs = part["properties"]
        if other != name and len(theirs) >= _WORTH_A_LINK and theirs.items() <= members.items():
            whole.append(f"[{other}](#{_slug(other)})")
            members = {member: value for member, value in members.items() if member not in theirs}
    has = f"It has the members of {' and of '.join(whole)}{', and' if members else ''}" if whole else ""
    rows = []
    for _, group in itertools.groupby(members.items(), lambda item: _meaning(item[1]) or _kind(item[1])):
        kinds: dict[str, list[str]] = {}
        meaning = ""
        for member, value in group:
            meaning = _meaning(value)
            kinds.setdefault(_kind(value), []).append(f"`{member}`{'' if member in one.get('required', ()) else '?'}")
        if kinds.keys() <= _NUMBERS:
            rows.append(f"- {', '.join(itertools.chain(*kinds.values()))}: {meaning}".rstrip(".: ") + ".")
            continue
        typed = "; ".join(f"{', '.join(names)}: {kind}" for kind, names in kinds.items())
        typed, meaning = _with_key(typed, meaning)
        rows.append(f"- {typed}. {meaning}".rstrip(". ") + ".")
    about = f"{one.get('description', '')} {has}".strip().rstrip(".")
    head = about and about + (":" if rows else ".")
    return "\n\n".join(filter(None, [f"### {name}", head, "\n".join(rows)]))


def _with_key(typed: str, meaning: str) -> tuple[str, str]:
    """`name -> integer` and "Code -> episodes" as `code -> integer` and "Episodes": what the names of an object are is said once."""
    key, arrow, value = meaning.partition(" -> ")
    if arrow and not re.search("[,:]", key) and typed.count(": name -> ") == 1:
        return typed.replace(": name -> ", f": {key[:1].lower()}{key[1:]} -> "), f"{value[:1].upper()}{value[1:]}"
    return typed, meaning


def _meaning(member: Mapping[str, Any]) -> str:
    text = str(member.get("description", ""))
    return text[:1].upper() + text[1:]


def _kind(schema: Mapping[str, Any]) -> str:
    """The type of a value in words."""
    if name := _referred(schema):
        return f"[{name}](#{_slug(name)})"
    if "anyOf" in schema:
        return " or ".join(
            sorted(map(_kind, schema["anyOf"]), key="null".__eq__)
        )  # its order depends on the version of msgspec
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    kind = schema.get("type", "any value")
    if kind == "array":
        return f"array of {_kind(schema['items'])}"
    if kind == "object" and isinstance(schema.get("additionalProperties"), Mapping):
        return f"name -> {_kind(schema['additionalProperties'])}"
    return str(kind)


def _slug(heading: str) -> str:
    return heading.lower().replace(" ", "-")


def _command(name: str) -> click.Command:
    command = cli.cli.get_command(click.Context(cli.cli), name)
    assert command is not None  # the table names only commands that exist
    return command


def _arguments(command: click.Command) -> str:
    """What follows its name."""
    return " ".join(command.collect_usage_pieces(click.Context(command, **command.context_settings)))


def _reference(page: str) -> str:
    """A link from a command's page to a page of docs/, or to a heading of it, by what that is called."""
    path, _, anchor = page.partition("#")
    headings = re.findall(r"^#+ (.+)$", (DOCS / path).read_text(encoding="utf-8"), re.MULTILINE)
    return f"[{next(heading for heading in headings if not anchor or _slug(heading) == anchor)}](../{page})"


def _linked(text: str, folder: str = "") -> str:
    """With the pages that it names as links, from a page from where `folder` leads to docs/."""
    return re.sub(r"docs/([\w/]+\.md)", rf"[\1]({folder}\1)", text)


def _in_lines(line: str) -> str:
    """A long command line, in lines that begin with options."""
    whole = re.sub(" (?!--)", "\N{NO-BREAK SPACE}", line)
    lines = textwrap.wrap(whole, 84, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)
    return " \\\n".join(lines).replace("\N{NO-BREAK SPACE}", " ")


def _options(command: click.Command) -> list[click.Option]:
    return [param for param in command.params if isinstance(param, click.Option)]


def _tables(options: Iterable[click.Option]) -> Iterator[str]:
    """Options as tables below the headings that help has."""
    titles = [sections.OWN, *sections.SECTIONS]
    for title, group in itertools.groupby(
        sorted(options, key=lambda one: titles.index(sections.section_of(one))), sections.section_of
    ):
        if title != sections.OWN:
            yield f"### {title}"
        yield "\n".join(["| option | meaning |", "| --- | --- |", *map(_row, group)])


def _row(option: click.Option) -> str:
    """An option as a row of a table."""
    kind = option.type
    value = option.metavar or kind.name.upper()
    facts, choices = [], ""
    if isinstance(kind, click.Choice):
        value = ""
        choices = f" One of {', '.join(f'`{choice}`' for choice in kind.choices)}."
    if isinstance(kind, click.IntRange):
        value = "N"
        facts.append(f"from {kind.min}" if kind.max is None or kind.max > _ANY else f"from {kind.min} to {kind.max:,}")
    facts += ["required"] if option.required else []
    default = f"{option.default:g}" if isinstance(option.default, float) else option.default
    facts += [f"default {default}"] if option.show_default else []
    facts += [f"or `{option.envvar}` of the environment"] if option.show_envvar else []
    *others, last = [*option.opts, *option.secondary_opts]
    last = f"{last} {'' if option.is_flag else value}".strip().replace("|", r"\|")
    spelled = ", ".join(f"`{text}`" for text in [*others, last])
    in_brackets = f" ({'; '.join(facts)})" if facts else ""
    return f"| {spelled} | {(option.help or '').rstrip('.')}{in_brackets}.{choices} |"


_PUSH_OPTIONS = frozenset(command_options(PushOptions))

_COMMANDS = "commands"
"""Folder of docs/ with a page for each command."""

_NAMES = {"SOURCE": "datasets.md#sources", "DEST": "convert.md", "VIEW": "views.md", "CODE": "validation.md#codes"}
"""What an argument or a value is called -> where it is explained."""

_EXITS = {
    "push": (1, 3, 4, 5, 6),
    "convert": (1, 3, 5, 6),
    "record": (1, 3, 4, 5, 6),
    "mix": (1, 3, 4, 5, 6),
    "inspect": (3, 5, 6),
    "show": (3, 6),
    "validate": (1, 3, 5),
    "index": (3, 6),
    "status": (5,),
    "journal": (5, 6),
    "delete": (3, 5),
    "migrate": (1, 3, 4, 5, 6),
    "top": (5,),
    "sample": (5,),
    "checkpoint": (5,),
}
"""Command -> exit codes that a script may want to tell apart, beside those that any command has."""

_GUIDES = {
    "push": ("tutorials/first_push.md", "exactly_once.md", "views.md", "validation.md", "cli.md#options-of-a-push"),
    "convert": ("convert.md", "transforms.md"),
    "record": ("adapters/gymnasium.md", "convert.md", "views.md"),
    "mix": ("mixing.md",),
    "inspect": ("report.md", "statistics.md", "datasets.md"),
    "show": ("show.md",),
    "validate": ("validation.md",),
    "index": ("datasets.md#the-index-of-records", "buckets.md"),
    "status": ("tutorials/running_the_service.md", "top.md"),
    "journal": ("journal.md",),
    "delete": ("journal.md#delete-episodes", "filters.md"),
    "migrate": ("migrating.md", "formats/reverb.md"),
    "top": ("top.md",),
    "sample": ("samplers.md", "learner.md"),
    "serve": ("tutorials/running_the_service.md", "reference/config.md", "runbook.md"),
    "checkpoint": ("runbook.md#restore", "runbook.md#checkpoints-that-clients-ask-for"),
    "schema": ("json.md",),
    "completion": ("completion.md",),
    "demo": ("tutorials/first_push.md",),
    "help": ("cli.md",),
}
"""Command -> pages that explain what it is about."""

_FAILED = "Failed"
"""What every document may be instead: the page says it once."""

_COMMON = {"Inspected": ("OneTable", "Inspection")}
"""An object that no document has as such -> the two that have its members."""

_NUMBERS = {"integer", "number"}
"""Types that are not named: the pages say so."""

_WORTH_A_LINK = 3
"""Members of an object that are named by it where another object has them all."""


SECTIONS: dict[str, tuple[str, Callable[[], str]]] = {
    "codes": ("validation.md", codes_list),
    "options": ("cli.md", options_table),
    "cli": ("cli.md", cli_reference),
    "json": ("json.md", json_reference),
    "config": ("reference/config.md", config_reference),
    "metrics": ("reference/metrics.md", metrics_table),
    "table-status": ("reference/metrics.md", table_status_reference),
    "views": ("views.md", views_table),
    "destinations": ("convert.md", destinations_table),
    "losses": ("convert.md", losses_list),
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
    for name in cli.COMMANDS:
        yield DOCS / _COMMANDS / f"{name}.md", command_page(name)
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
