"""The sequential and concurrent examples run as scripts, print the expected output, and leave no files."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest
from tests.examples.printing import printed

EXAMPLES = Path(__file__).parents[2] / "examples" / "orchestrations"

EXPECTED = {
    "sequential.py": """\
        Lamps
          intermediate of writer: Lamps are
          intermediate of writer: for people
          intermediate of writer: who read.
          output of editor: I have heard 3
          output of editor: messages. It is short.
          output of editor: Then let us print
          output of editor: it.
        Lamps with a foot and a shade
          intermediate of writer: Lamps with a
          intermediate of writer: foot and a
          intermediate of writer: shade are for
          intermediate of writer: people who read.
          output of after-critic: It is TOO LONG: 12 words.
        """,
    "sequential_request_info.py": """\
        writer: Our lamp is bright.
          the person: How long will it last?
        writer: Our lamp is bright, and lasts for ten years.
          the person: good
        (in German, after 4 messages)
        """,
    "concurrent_experts.py": """\
        market: People want lamps.
        law: Lamps are legal.
        money: Lamps are cheap.
        Decision(opinions=3, text='Then let us sell them. (People want lamps. Lamps are legal. Lamps are cheap.)')
        """,
    "concurrent_request_info.py": """\
        law: Lamps are legal, I think. -> look it up
        law: Lamps are legal: I have looked it up. -> good
        market wants to call buy_report: yes
          buying a report about lamps
        market: The report says that people want lamps. -> good
        Lamps are legal: I have looked it up. The report says that people want lamps.
        """,
}


@pytest.mark.parametrize("name", EXPECTED)
def test_an_example_of_a_chain_prints_what_it_promises(name: str, tmp_path: Path) -> None:
    assert printed(EXAMPLES / name, under=tmp_path) == dedent(EXPECTED[name])
