"""A short resume suite: it finds nothing on the shipped stores, and the fault on each faulty one."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from tests.crash.kinds import KINDS, ON_DISK
from tests.postgres_server import shared_server
from tests.soak import IS_SOAK

from perdure.testing.resume import WINDOWS, Report, run_suite

ROOT = Path(__file__).parents[2]
SEED = "20260"
POINTS = 5 if IS_SOAK else 1
"""Number of directed kills in each window."""
KILLS = 20 if IS_SOAK else 2
"""Number of random kills."""


def violated(report: Report) -> set[str]:
    return {violation.property for violation in report.violations}


def left_behind(kind: str) -> set[tuple[object, ...]]:
    """The schemas that were made for the suite and are there."""
    if kind != "postgres":
        return set()
    with closing(shared_server().connect()) as connection:
        return set(connection.execute("SELECT nspname FROM pg_namespace WHERE nspname LIKE 'resume%'").fetchall())


def short(kind: str, *options: str) -> Report:
    """The suite on the small workflow: every point, and one round of everything else."""
    few = ("--stores", kind, "--seed", SEED, "--kills", "0", "--rounds", "1", "--races", "1")
    return run_suite("tests.crash.faulty", *few, *options, cwd=ROOT)


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_is_killed_again_and_again_is_the_one_that_nobody_disturbed(kind: str) -> None:
    few = ("--points", "1", "--kills", str(KILLS), "--rounds", "1", "--races", "1")
    before = left_behind(kind)
    report = run_suite("tests.crash.errand", "--stores", kind, "--seed", SEED, *few, cwd=ROOT)
    assert report.is_clean, report.table()
    for window in WINDOWS.values():
        assert report.windows[f"{window}/{kind}"], f"no kill {window}:\n{report.table()}"
    assert report.kills[f"random/{kind}"] >= KILLS
    assert report.checks[f"recovery from an export/{kind}"]
    assert left_behind(kind) == before


@pytest.mark.parametrize("kind", KINDS if IS_SOAK else ON_DISK)
def test_operations_of_a_store_can_be_the_last_ones(kind: str) -> None:
    report = short(kind, "--points", str(POINTS), "--rounds", "0", "--races", "1" if IS_SOAK else "0")
    assert report.is_clean, report.table()
    assert report.windows[f"inside the commit/{kind}"] >= POINTS, report.table()
    assert report.windows[f"while an answer or a message is recorded/{kind}"] >= POINTS, report.table()


def test_a_store_that_forgets_what_was_recorded_is_found_out() -> None:
    report = short("forgetful", "--points", "3", "--rounds", "0", "--races", "0")
    assert "effect once" in violated(report), report.table()


def test_a_store_that_loses_records_of_activations_is_found_out() -> None:
    report = short("repeating", "--points", "2", "--rounds", "0", "--races", "0")
    assert violated(report) == {"effect once"}, report.table()
    assert any("done again after it had returned: left hand" in each.what for each in report.violations)


def test_a_store_that_loses_how_far_a_sub_workflow_has_come_is_found_out() -> None:
    report = short("childless", "--points", "2", "--rounds", "0", "--races", "0")
    assert violated(report) == {"effect once"}, report.table()
    assert any("done again after it had returned: rung 0" in each.what for each in report.violations)


def test_a_store_that_commits_an_answer_beside_another_is_found_out() -> None:
    report = short("rash", "--points", "0", "--rounds", "0")
    assert violated(report) == {"consume once"}, report.table()
    assert "2 different answers were accepted" in report.violations[0].what


def test_damage_that_finds_no_place_is_not_shown_to_be_survived() -> None:
    report = short("elsewhere", "--points", "0", "--races", "0")
    assert not report.violations, report.table()
    assert [each.property for each in report.not_shown] == ["checkpoint validity"], report.table()
    assert not report.is_clean
    assert report.table().count("not tried") == 1, "the races, which were not wanted"


def test_damage_is_done_by_the_kind_that_knows_where() -> None:
    report = short("known", "--points", "0", "--races", "0")
    assert report.is_clean, report.table()


def test_a_store_that_loses_records_on_export_is_found_out() -> None:
    report = short("careless", "--points", "0", "--rounds", "3", "--races", "0")
    assert violated(report) == {"recovery from an export"}, report.table()
    assert any("done again after it had returned" in each.what for each in report.violations), report.table()


def test_from_a_store_without_exports_none_is_tried() -> None:
    report = short("plain", "--points", "1", "--rounds", "1", "--races", "0")
    assert report.is_clean, report.table()
    assert not report.checks["recovery from an export/plain"]
    assert "not tried" in next(line for line in report.table().splitlines() if line.startswith("recovery from"))


def test_a_store_that_takes_every_answer_is_found_out() -> None:
    report = short("gullible", "--points", "0", "--rounds", "0", "--races", "6")
    assert "consume once" in violated(report), report.table()


def test_a_store_that_hides_damage_is_found_out() -> None:
    report = short("blind", "--points", "0", "--rounds", "3", "--races", "0")
    assert "checkpoint validity" in violated(report), report.table()


def test_a_workflow_whose_outputs_depend_on_the_life_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOODY", "yes")
    report = short("file", "--points", "1")
    assert {"prefix continuation", "recovery determinism"} <= violated(report), report.table()
    assert "effect once" in {each.property for each in report.not_shown}, "it has no effects"
    assert report.table().endswith(f"seed {SEED}")


def test_a_program_that_comes_to_no_report_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="no report"):
        run_suite("tests.crash.errand", "--stores", "stone", cwd=ROOT)


def test_the_example_of_the_page_runs(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "resume-suite.md").read_text(encoding="utf-8")
    example = page.partition("```python\n")[2].partition("```")[0]
    program = tmp_path / "my_check.py"
    program.write_text(example, encoding="utf-8")
    few = ("--stores", "sqlite", "--points", "1", "--kills", "0", "--rounds", "1", "--races", "1")
    report = run_suite(program, "--seed", SEED, *few)
    assert report.is_clean, report.table()
    assert report.checks["effect once/sqlite"]
