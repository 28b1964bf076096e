"""Every example with agents runs as a script, prints what it promises, warns of nothing and leaves nothing behind."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest
from tests.examples.printing import printed

EXAMPLES = Path(__file__).parents[2] / "examples" / "agents"

EXPECTED = {
    "agent_as_tool.py": """\
        life 1
          opening 'Owls'
          the model of the author is not to be reached
          asked: author librarian librarian author
        life 2
          Owls see what is behind them.
          asked: author
        """,
    "agents_as_nodes.py": """\
        writer: Owls hear a mouse under the snow.
        reviewer: Of 3 messages I know; the last is good: Owls hear a mouse under the snow.
        """,
    "checkpoint_with_human_in_the_loop.py": """\
        life 1
          for review: Our new lamp is bright.
          calls of the model: 1
        life 2
          the person: say how long it lasts
          for review: Our new lamp is bright, and lasts for ten years.
          calls of the model: 1
        life 3
          the person: approve
          published: Our new lamp is bright, and lasts for ten years.
          calls of the model: 0
        """,
    "custom_agent_executors.py": """\
        the line broke in the middle of the handler
          asked: writer critic
        Lamps for people who read. / Lampen für Leser. (Too short.)
          asked: translator
        """,
    "declaration_only_tools.py": """\
        the model calls where_is_the_user with {'precision': 'city'}
        Then take the tram; it stops everywhere in Oslo.
        """,
    "experts.py": """\
        In short: People want lamps. Lamps are legal. Lamps are cheap.
        """,
    "kwargs_to_tools.py": """\
        the model is told of [['year'], []]
        Ada has ordered 3 lamps in 2026; Ada has no points
        Grace has ordered 3 lamps in 2026; Grace has 12 points
        """,
    "middleware.py": """\
        turn of cashier begins
          the model is shown 1 messages
            transfer is called
          the model is shown 3 messages
            transfer is called
              sending 50 euros
          the model is shown 5 messages
        turn of cashier ends
        I could send 50 euros only.
        """,
    "shared_session.py": """\
        a turn, in a workflow built anew
          first: I know of 1 messages
          second: I know of 3 messages
        a turn, in a workflow built anew
          first: I know of 5 messages
          second: I know of 7 messages
        """,
    "streaming.py": """\
        as it comes
          'Slowly, silently, now '
          'the moon walks '
          'the night in '
          'her silver shoon.'
          calls of the model: 1
        once more, from the store
          'Slowly, silently, now the moon walks the night in her silver shoon.'
          calls of the model: 0
        """,
    "structured_edges.py": """\
        will be answered: When do you open?
        dropped, since it promises too much: You win a car!
        somebody has to look: Hm.
        """,
    "tool_approval.py": """\
          reading the mail
        may send_mail be called with {'to': 'ada', 'text': 'yes'}? yes
        may send_mail be called with {'to': 'eve', 'text': 'no'}? no
          sending to ada: yes
        Ada has her answer; Eve has none, since I was not allowed to.
        """,
    "workflow_as_agent_checkpoint.py": """\
        failed: the model of the checker is not to be reached
        asked: writer checker
        2 checkpoints; from the last one, with an agent built anew:
          Right: twice.
        asked: writer checker checker
        """,
    "workflow_as_agent_human_in_the_loop.py": """\
        request_info: Offer(text='A lamp for 20 euros.')
        A lamp for 20 euros.
        """,
    "workflow_as_agent_session.py": """\
        life 1: Good morning.
          You said 'Good morning.', and 'Good morning.' at first.
        life 2: Do you know me?
          You said 'Do you know me?', and 'Good morning.' at first.
        """,
}


@pytest.mark.parametrize("name", EXPECTED)
def test_an_example_with_agents_prints_what_it_promises(name: str, tmp_path: Path) -> None:
    assert printed(EXAMPLES / name, under=tmp_path) == dedent(EXPECTED[name])


def test_every_example_with_agents_is_run_by_a_test() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == EXPECTED.keys()
