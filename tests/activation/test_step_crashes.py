"""A process that is killed inside a step: what had finished is not done again, the rest as its policy says."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests import warm

if TYPE_CHECKING:
    from subprocess import CompletedProcess


ROOT = Path(__file__).parents[2]

both_stores = pytest.mark.parametrize("kind", ["file", "sqlite"])


def life(kind: str, directory: Path, name: str, *decision: str) -> CompletedProcess[str]:
    return warm.run("-m", "tests.activation.dying", kind, str(directory), name, *decision, cwd=ROOT)


def killed(kind: str, directory: Path, name: str) -> None:
    assert life(kind, directory, name).returncode == -signal.SIGKILL


def lived(kind: str, directory: Path, name: str, *decision: str) -> str:
    ended = life(kind, directory, name, *decision)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def effects(directory: Path) -> list[str]:
    return (directory / "effects").read_text(encoding="utf-8").splitlines()


@both_stores
@pytest.mark.parametrize("name", ["three", "sub:three"])
def test_only_the_step_that_was_cut_off_and_those_after_it_are_done_by_the_next_life(
    kind: str, name: str, tmp_path: Path
) -> None:
    killed(kind, tmp_path, name)
    assert effects(tmp_path) == ["one"]
    assert lived(kind, tmp_path, name) == "[['ONE', 'TWO', 'THREE']]"
    assert effects(tmp_path) == ["one", "two", "three"]
    assert lived(kind, tmp_path, name) == "[['ONE', 'TWO', 'THREE']]"
    assert effects(tmp_path) == ["one", "two", "three"]


@both_stores
def test_steps_that_ran_side_by_side_are_told_apart_after_a_crash(kind: str, tmp_path: Path) -> None:
    killed(kind, tmp_path, "gathered")
    assert sorted(effects(tmp_path)) == ["b", "c"]
    assert lived(kind, tmp_path, "gathered") == "[['A', 'B', 'C']]"
    assert sorted(effects(tmp_path)) == ["a", "b", "c"]


@both_stores
@pytest.mark.parametrize(
    ("decision", "result", "payments"), [("done:PAID", "PAID", 1), ("rerun", "PAY", 2)], ids=["done", "rerun"]
)
def test_somebody_decides_about_a_step_that_a_crash_interrupted(
    kind: str, decision: str, result: str, payments: int, tmp_path: Path
) -> None:
    killed(kind, tmp_path, "asking")
    assert effects(tmp_path) == ["first", "pay"]
    assert lived(kind, tmp_path, "asking") == "[('pay', 'node')]"
    assert lived(kind, tmp_path, "asking") == "[('pay', 'node')]", "asked again, by the same request"
    assert effects(tmp_path) == ["first", "pay"]
    assert lived(kind, tmp_path, "asking", decision) == f"[['FIRST', {result!r}]]"
    assert effects(tmp_path) == ["first", *["pay"] * payments]


@both_stores
@pytest.mark.parametrize("name", ["finding_out", "not_done", "sub:finding_out"])
def test_a_function_finds_out_whether_interrupted_work_was_done(kind: str, name: str, tmp_path: Path) -> None:
    killed(kind, tmp_path, name)
    assert lived(kind, tmp_path, name) == "[['PAY']]"
    assert effects(tmp_path) == ["pay"]
