"""A run that one process began goes on in another, however either of them was started."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAMS = Path(__file__).parent / "programs"
AS_SCRIPT = [str(PROGRAMS / "errand.py")]
AS_MODULE = ["-m", "errand"]
IMPORTED = ["-c", "import errand; errand.main()"]
OUTCOME = ["post True begun+done post"]


@pytest.fixture(params=["file", "sqlite"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> list[str]:
    return [request.param, str(tmp_path / "checkpoints")]


def begin(how: list[str], command: str, place: list[str], *, programs: Path = PROGRAMS) -> subprocess.Popen[str]:
    """Start the program; the command line says how Python finds it."""
    environment = {**os.environ, "PYTHONPATH": str(programs)}
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [sys.executable, *how, command, *place], env=environment, stdin=pipe, stdout=pipe, stderr=pipe, text=True
    )


def ended(process: subprocess.Popen[str]) -> str:
    """What it printed, once it has ended well."""
    out, err = process.communicate()
    assert process.returncode == 0, err
    return out


def answered(how: list[str], place: list[str], *, programs: Path = PROGRAMS) -> dict[str, Any]:
    return json.loads(ended(begin(how, "answer", place, programs=programs)))


@pytest.mark.parametrize("second", [AS_SCRIPT, AS_MODULE, IMPORTED], ids=["script", "module", "imported"])
@pytest.mark.parametrize("first", [AS_SCRIPT, IMPORTED], ids=["script", "imported"])
def test_a_script_and_the_same_module_imported_are_one_workflow(
    place: list[str], first: list[str], second: list[str]
) -> None:
    ended(begin(first, "start", place))
    told = answered(second, place)
    assert told["outputs"] == OUTCOME
    assert told["run_id"] == "errand"


def test_a_killed_process_is_followed_at_once(place: list[str]) -> None:
    process = begin(AS_SCRIPT, "die", place)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert answered(AS_SCRIPT, place)["outputs"] == OUTCOME


def test_a_living_owner_is_named_and_its_run_is_refused(place: list[str]) -> None:
    owner = begin(AS_SCRIPT, "hold", place)
    assert owner.stdout is not None
    assert owner.stdout.readline() == "held\n"
    rival = begin(AS_SCRIPT, "start", place)
    _, err = rival.communicate()
    assert rival.returncode != 0
    assert "RunBusyError" in err
    assert f"process {owner.pid}" in err
    owner.communicate("")
    assert owner.returncode == 0
    assert answered(AS_SCRIPT, place)["outputs"] == OUTCOME


def test_a_program_whose_module_was_renamed_goes_on_if_its_types_have_kept_their_names(
    place: list[str], tmp_path: Path
) -> None:
    place = [*place, "errands"]
    ended(begin(AS_SCRIPT, "start", place))
    moved = tmp_path / "moved"
    moved.mkdir()
    text = (PROGRAMS / "errand.py").read_text()
    registrations = "\n".join(
        f"perdure.register_type({name}, name='errand:{name}')" for name in ("Stage", "Errand", "Permission")
    )
    text = text.replace("class Runner", f"import perdure\n{registrations}\n\n\nclass Runner", 1)
    (moved / "chore.py").write_text(text)
    told = answered([str(moved / "chore.py")], place, programs=moved)
    assert told["outputs"] == OUTCOME


def test_a_program_whose_module_was_renamed_is_told_which_type_it_does_not_know(
    place: list[str], tmp_path: Path
) -> None:
    place = [*place, "errands"]
    ended(begin(AS_SCRIPT, "start", place))
    moved = tmp_path / "moved"
    moved.mkdir()
    shutil.copy(PROGRAMS / "errand.py", moved / "chore.py")
    process = begin([str(moved / "chore.py")], "answer", place, programs=moved)
    _, err = process.communicate()
    assert process.returncode != 0
    assert "UntrustedTypeError" in err
    assert "'errand:Permission'" in err
    assert "register_type" in err
