"""The output of every command that reads, on every kind of store, compared with files in `snapshots/`.

PERDURE_SNAPSHOTS=write writes the files anew. Times, ids, processes and paths are replaced by fixed ones.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from pathlib import Path

import pytest
from tests.cli.conftest import filled
from tests.postgres_server import needs_postgres
from typer.testing import CliRunner

from perdure.cli import load
from perdure.cli.views import SCHEMA

SNAPSHOTS = Path(__file__).with_name("snapshots")
KINDS = ["file", "sqlite", pytest.param("postgres", marks=needs_postgres)]
SAME = {
    r"\d{4}-\d\d-\d\d([T ])\d\d:\d\d:\d\d": r"2026-01-01\g<1>00:00:00",
    r"(2026-01-01T00:00:00)\.\d+": r"\1.000000",
    r"\b[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}\b": "0" * 36,
    r"\b[0-9a-f]{32}\b": "0" * 32,
    r"\b[0-9a-f]{40}\b": "0" * 40,
    r"process \d+ on [\w.-]+": "process 1 on host",
    r"File \"[^\"]*/(tests|perdure)/": r'File "\1/',
    r"line \d+": "line 1",
    r'"traceback": "[^"\\]*(\\.[^"\\]*)*"': '"traceback": "Traceback ..."',
    "x{999,}": "x...x",
    r'"(seconds|duration|commit_duration)": \d[^,}\s]*': r'"\1": 0.0',
    r'"bytes_written": \d+': '"bytes_written": 0',
    r"  \d\.\d{3}(?=\s)": "  0.000",
}
COMMANDS = [
    *(
        "runs --order oldest --workflow stock",
        "runs --status failed --order oldest",
        "runs --count --workflow purchase",
        "requests",
    ),
    *("show order-1", "show buy-1", "show buy-2", "show nap-1", "why order-1", "why buy-1", "why buy-2", "why nap-1"),
    *("why stock-1", "why chat-1", "tree stock-2", "events buy-1", "events order-1", "checkpoints stock-1"),
    *("state stock-1", "state buy-1", "state order-1", "diff stock-1@0 stock-1@1", "diff stock-1 stock-2"),
    *("graph order-1", "graph buy-1", "graph nap-1", "calls chat-1"),
]
HOST_COMMANDS = ["show fatal-1", "why fatal-1"]


def perdure(url: str, command: str, *, columns: int = 80) -> str:
    """Run a command in this process, and return its output and exit code."""
    arguments = [*shlex.split(command), "-s", url]
    found = CliRunner().invoke(load(), arguments, env={"COLUMNS": str(columns), "NO_COLOR": "1"})
    if found.exception is not None and not isinstance(found.exception, SystemExit):
        raise found.exception
    return normalised(f"$ perdure {command}\n{found.output}[{found.exit_code}]\n")


def normalised(text: str) -> str:
    for pattern, same in SAME.items():
        text = re.sub(pattern, same, text)
    return text


def check(name: str, text: str) -> None:
    """Compare a text with its file."""
    path = SNAPSHOTS / name
    if os.environ.get("PERDURE_SNAPSHOTS") == "write":
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8"), f"{name} differs; PERDURE_SNAPSHOTS=write writes it anew"


@pytest.mark.parametrize("kind", KINDS)
def test_tables_are_the_same_on_every_store(kind: str) -> None:
    url = filled(kind)
    check("tables.txt", "\n".join(perdure(url, each) for each in COMMANDS))


def test_tables_of_120_columns() -> None:
    wide = ("runs --order oldest", "requests", "calls chat-1", "checkpoints stock-1")
    check("tables_120.txt", "\n".join(perdure(filled("sqlite"), each, columns=120) for each in wide))


@pytest.mark.parametrize("kind", KINDS[1:])
def test_a_run_that_kills_its_processes_is_explained(kind: str) -> None:
    check("quarantined.txt", "\n".join(perdure(filled(kind), each) for each in HOST_COMMANDS))


@pytest.mark.parametrize("kind", KINDS)
def test_json_is_the_same_on_every_store(kind: str) -> None:
    found = [perdure(filled(kind), f"{each} -o json") for each in COMMANDS]
    for text in found:
        assert json.loads(text.partition("\n")[2].rpartition("[")[0])["schema"] == SCHEMA
    check("json.txt", "\n".join(found))


def test_pictures() -> None:
    drawn = [perdure(filled("sqlite"), f"graph order-1 --as {each}") for each in ("mermaid", "dot")]
    check("pictures.txt", "\n".join(drawn))


@pytest.mark.parametrize("kind", KINDS)
def test_hostile_text_reaches_no_terminal_and_long_values_are_cut(kind: str) -> None:
    for command in COMMANDS:
        for output in ("table", "json", "jsonl"):
            text = perdure(filled(kind), f"{command} -o {output}")
            assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202e]", text), command
    assert len(perdure(filled(kind), "state stock-1")) < 15_000
    assert "(cut: 100,000 characters in all)" in perdure(filled(kind), "state stock-1")
