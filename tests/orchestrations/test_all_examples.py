"""Every example of an orchestration has a test."""

from __future__ import annotations

from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples" / "orchestrations"


def test_every_example_of_an_orchestration_is_run_by_a_test() -> None:
    tests = "".join(path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("test_*.py"))
    assert {path.name for path in EXAMPLES.glob("*.py") if f'"{path.name}"' not in tests} == set()
