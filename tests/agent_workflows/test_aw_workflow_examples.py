"""The examples of agent workflows print what they promise, warn of nothing and leave nothing behind.

Those that start further processes run as scripts, the others in this process, which is quicker.
"""

from __future__ import annotations

import runpy
import sys
import tempfile
import warnings
from pathlib import Path
from textwrap import dedent

import pytest
from tests.examples.printing import printed

EXAMPLES = Path(__file__).parents[2] / "examples" / "agent_workflows"

EXPECTED = {
    "durable_review.py": """\
        the first process
          the model of 'draft' is asked
          the model of 'review' is asked
          it has ended with 9
        the second process
          the model of 'review' is asked
          review-1: I have read 'Lamps last.': print it.
          told again, and nobody was asked: I have read 'Lamps last.': print it.
          it has ended with 0
        """,
    "in_memory_store.py": """\
        Print it. {'draft.draft': 'Lamps last.', 'review.answer': 'Print it.'}
        kept: review-1 of DurableReview, idle
        Print it.
        refused: workflow 'DurableReview' keeps no executions, so there is nothing to resume
        """,
    "retention.py": """\
        LatestOnly: review-1@5
          resumed: Print it.
        FullHistory: review-1@0, review-1@1, review-1@2, review-1@3, review-1@4, review-1@5
          resumed: Print it.
        KeepLast(2): review-1@4, review-1@5
          resumed: Print it.
        """,
    "router.py": """\
        It does not work.
          START -> router: None
          router -> help: handoff_target == 'help'
          not billing
          not clerk
          not boss
          help -> END: None
          Have you turned it off and on?
        I want my money back.
          START -> router: None
          router -> billing: handoff_target == 'billing'
          not help
          billing -> clerk: amount <= 100
          not boss
          clerk -> END: None
          Paid out: 9.0 because: It broke.
        I want all my money back.
          START -> router: None
          router -> billing: handoff_target == 'billing'
          not help
          billing -> boss: no other condition holds
          not clerk
          boss -> END: None
          I have to think about it: 900.0 because: It broke.
        """,
    "loop.py": """\
        at most 5 passes
          pass 0, write: Lamps
          pass 0, critic: longer than 'Lamps'
          pass 1, write: Lamps last
          pass 1, critic: longer than 'Lamps last'
          pass 2, write: Lamps last last
          pass 2, critic: good
          Lamps last last
        at most 2 passes
          pass 0, write: Lamps
          pass 0, critic: longer than 'Lamps'
          pass 1, write: Lamps last
          pass 1, critic: longer than 'Lamps last'
          IterationLimitError: the loop 'critic' -> 'write' would go on after 2 passes, and its limit is 2
        """,
    "error_modes.py": """\
        skip_dependents: success True, failed {'search': 'ChatClientException: the search is down'}, skipped ['write']
          'Four words.'
        isolate: success True, failed {'search': 'ChatClientException: the search is down'}, skipped []
          "Written from ''\\n\\nFour words."
        fallback: success True, failed {'search': 'ChatClientException: the search is down'}
          "Written from 'I remember two lamps.'\\n\\nFour words."
        stop: the search is down
          resumed: "Written from 'Found: three lamps.'\\n\\nFour words."
        """,
    "approval_over_restart.py": """\
        ask
          the model of 'offer' is asked
          offer-1 is waiting: May this offer be sent? 900
          the model of 'offer' is asked
          offer-2 is waiting: May this offer be sent? 900
        answer
          offer-1: success True: Sent: Nine lamps for 450
          offer-2: success False: 'offer' was denied: we have no lamps
        """,
    "conversations.py": """\
        one shared thread
          talk
            user: Write about lamps.
            assistant: Lamps last. (I was told 1)
            user: Lamps last. (I was told 1)
            assistant: Print it. (I was told 3)
        a thread per agent
          of-draft
            user: Write about lamps.
            assistant: Lamps last. (I was told 1)
          of-review
            user: Lamps last. (I was told 1)
            assistant: Print it. (I was told 1)
        a fork per agent
          request
            user: Write about lamps.
          of-draft
            user: Write about lamps.
            assistant: Lamps last. (I was told 1)
          of-review
            user: Write about lamps.
            user: Lamps last. (I was told 1)
            assistant: Print it. (I was told 2)
        """,
    "as_tool_and_node.py": """\
        may it be called? Review({"input": "Lamps"})
        the model was told: Lamps last. (reviewed)
        Here you are.
        ['LAMPS LAST. (REVIEWED)']
        Tables last. (reviewed)
        """,
    "from_json.py": """\
        flowchart TD
          START([START])
          n_draft["draft"]
          n_review["review"]
          n_print["print"]
          END([END])
          n_draft --> n_review
          n_review -->|"answer contains 'good'"| n_print
          START --> n_draft
          n_print --> END
        Printed.
        Review from the store: Printed.
        left out: edges[2].when: the function
        this agent workflow can't be built: edges[2].when: it is a function, which JSON can't hold
        """,
}


def run_here(path: Path, under: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run an example in an empty directory. It must warn of nothing and leave nothing behind."""
    here, scratch = under / "here", under / "scratch"
    here.mkdir()
    scratch.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    monkeypatch.setattr(sys, "argv", [str(path)])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        runpy.run_path(str(path), run_name="__main__")
    assert [*here.iterdir(), *scratch.iterdir()] == []


@pytest.mark.parametrize("name", EXPECTED)
def test_an_example_of_an_agent_workflow_prints_what_it_promises(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = EXAMPLES / name
    if "import subprocess" in path.read_text(encoding="utf-8"):
        found = printed(path, under=tmp_path)
    else:
        run_here(path, tmp_path, monkeypatch)
        found, complaints = capsys.readouterr()
        assert complaints == ""
    assert found == dedent(EXPECTED[name])


def test_every_example_of_an_agent_workflow_is_run() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == EXPECTED.keys()
