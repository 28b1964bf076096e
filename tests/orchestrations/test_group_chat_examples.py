"""The group chat examples run as scripts, print the expected output, emit no warnings and leave no files."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest
from tests.examples.printing import printed

EXAMPLES = Path(__file__).parents[2] / "examples" / "orchestrations"

EXPECTED = {
    "group_chat_round_robin.py": """\
        writer: Lamps, cheap.
        reviewer: Say what they are for.
        writer: A lamp for every book.
        reviewer: APPROVED, print it.
        The group chat has reached its termination condition.
        """,
    "group_chat_led_by_agent.py": """\
        life 1
          the biologist is not to be reached
          asked: host host historian host biologist
        life 2
          Owls are old, and hear well.
          asked: biologist host
        """,
    "group_chat_with_person.py": """\
        The last word was: Take the tram.
          the person: There is no tram today.
        The last word was: Then walk: it is not far.
          the person: Thanks.
        The group chat has reached its termination condition.
        """,
}


@pytest.mark.parametrize("name", EXPECTED)
def test_an_example_of_a_group_chat_prints_what_it_promises(name: str, tmp_path: Path) -> None:
    assert printed(EXAMPLES / name, under=tmp_path) == dedent(EXPECTED[name])
