"""The handoff examples run as scripts, print the expected output, emit no warnings and leave no files."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest
from tests.examples.printing import printed

EXAMPLES = Path(__file__).parents[2] / "examples" / "orchestrations"

EXPECTED = {
    "handoff.py": """\
        customer: My lamp is broken, I want my money back.
        triage: Refunds will help you.
          triage hands over to refunds
        refunds: What is the number of your order?
        customer: Order 42.
          may refund be called with {'order': 42, 'euros': 20}? yes
          refunding 20 euros for order 42
        refunds: You get 20 euros back. Goodbye!
        the conversation is over: IDLE
        """,
    "handoff_autonomous.py": """\
        life 1
          researcher: Owls_
          researcher: hunt_
          researcher: at_
          researcher: night.
          researcher: They hear_
          researcher: a mouse_
          researcher: under snow.
          researcher: I_
          researcher: know_
          researcher: enough.
          researcher hands over to writer
          the line broke
          asked: researcher researcher researcher writer
        life 2
          researcher: Owls hunt at night.
          researcher: They hear a mouse under snow.
          researcher: I know enough.
          writer: Owls: night_
          writer: hunters with_
          writer: good ears.
          asked: writer
        """.replace("_", " "),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_an_example_of_a_handoff_prints_what_it_promises(name: str, tmp_path: Path) -> None:
    assert printed(EXAMPLES / name, under=tmp_path) == dedent(EXPECTED[name])
