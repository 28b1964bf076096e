"""Every example runs as a script, prints what it promises, warns of nothing and leaves nothing behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

EXAMPLES = Path(__file__).parents[2] / "examples"
STORAGES = ("InMemoryCheckpointStorage", "FileCheckpointStorage", "SqliteCheckpointStorage")

EXPECTED = {
    "approvals_desk.py": """\
        a process: work
          the run is IDLE_WITH_PENDING_REQUESTS
        a process: desk alice
          run 'refund-1' asks for a Decision: {'customer': 'Ada', 'euros': 250}
          alice has answered; that is on disk now, and waits for the run
        a process: desk bob
          run 'refund-1' asks for a Decision: {'customer': 'Ada', 'euros': 250}
          bob comes too late: alice has answered {'is_approved': True, 'remark': 'well deserved, says alice'}
        a process: work
          the run is IDLE
          refunded 250 euros to Ada: well deserved, says alice
        """,
    "charge_once.py": """\
        the first life is killed between the charge and its record
            reserving a lamp
            provider: a new key, 120 euros are charged
          ended with -9
        the second one does not reserve again, and asks the provider with the same key
            provider: a key that I know, 120 euros were charged before
            a lamp sold, receipt for 120 euros
          ended with 0
        the third one finds all of it done
            a lamp sold, receipt for 120 euros
          ended with 0
        charges: 1
        """,
    "fan_in.py": """\
        library sends Reading(subject='owls', page=1)
        slow sends Reading(subject='owls', page=2)
        fast sends the fast reader on owls
        steady sends Reading(subject='owls', page=2)
        slow sends Reading(subject='owls', page=3)
        steady sends the steady reader on owls
        -- interrupted: two findings wait for the third
        the summary gets, in the order of its edges:
          the slow reader on owls
          the fast reader on owls
          the steady reader on owls
        """,
    "fork_and_edit.py": """\
        the run:               180.00 euros
        with half off:         100.00 euros
        of another amount:     900.00 euros
        refused:               state['discount'] is a float, the edit makes it a str; if that is intended, add retype=['discount']
        checkpoints of the run: 4 before, 4 after
        """,  # noqa: E501 - one line of output
    "human_in_the_loop.py": """\
        a process to ask
          the run is IDLE_WITH_PENDING_REQUESTS; this process ends now
        a process to answer
          asked by 'cashier': Expense(what='a lamp', euros=120)
          paid 120 euros for a lamp, says Grace
        """,
    "sub_workflow.py": """\
        Order(item='pen', count=5)
          inside picking: executor_invoked Order(item='pen', count=5)
          inside picking: request_info StockQuery(item='pen')
          inside picking: executor_invoked 3
          shipped 3 of 5 x pen
        Order(item='ruler', count=2)
          inside picking: executor_invoked Order(item='ruler', count=2)
          inside picking: request_info StockQuery(item='ruler')
          inside picking: executor_invoked 40
          shipped 2 of 2 x ruler
        """,
    "seeds/counter.py": """\
        counter = 1
        counter = 2
        counter = 3
        -- interrupted: the workflow and its executors are gone, the storage is not
        -- a new workflow resumes after superstep 3
        counter = 4
        counter = 5
        output: 5
        """,
    "seeds/custom_storage.py": """\
        interrupted after 4 supersteps
        output: 192
        8 checkpoints
        """,
    "seeds/in_memory_storage.py": """\
        HELLO, ADA
        Saved 3 in-memory checkpoints
        """,
    "seeds/message_log.py": """\
        heard so far: ['one']
        heard so far: ['one', 'two']
        from the end of the first turn, 'three': ['one', 'three']
        from the end of the first turn, 'four': ['one', 'four']
        """,
    "seeds/persistent_storage.py": """\
        file, first process
            drafting tides
            killed while polishing
          ended with -9
        file, second process
            polishing a draft on tides
            polished: a draft on tides
          ended with 0
        sqlite, first process
            drafting tides
            killed while polishing
          ended with -9
        sqlite, second process
            polishing a draft on tides
            polished: a draft on tides
          ended with 0
        """,
    "seeds/restore_same_run.py": """\
        completed with: [50, 25, 37, 43, 40, 41, 42]
        8 checkpoints, one before the first superstep and one after each
        superstep 6 again, as 8
        completed again with: [50, 25, 37, 43, 40, 41, 42]
        superstep 7 again, as 9
        the run still is the same
        it has 10 checkpoints now
        a new run completed with: [50, 25, 37, 43, 40, 41, 42]
        that run is another
        """,
    "seeds/resume_and_rehydrate.py": """\
        output: First things first.
        output: Second thoughts.
        checkpoint 1: superstep 0, waiting: ['  first things first  ']
        checkpoint 2: superstep 1, waiting: ['first things first']
        checkpoint 3: superstep 2, waiting: ['First things first']
        checkpoint 4: superstep 3, waiting: []
        checkpoint 5: superstep 0, waiting: ['  second thoughts  ']
        checkpoint 6: superstep 1, waiting: ['second thoughts']
        checkpoint 7: superstep 2, waiting: ['Second thoughts']
        checkpoint 8: superstep 3, waiting: []
        resumed on the same instance: Second thoughts.
        rehydrated in a new instance: Second thoughts.
        3 runs: the first and two forks; the first still has its 8 checkpoints
        """,
    "seeds/sub_workflow_checkpoint.py": """\
        booked in all: 70
        a new instance is asked: may 500 be booked?
        booked in all: 570
        """,
}

ON_EACH_STORAGE = {
    "seeds/checkpoint_with_human_in_the_loop.py": """\
          'All about owls'? in two pages!
          'All about owls, in two pages'? approve!
          published: All about owls, in two pages
        """,
    "seeds/factor_pairs.py": """\
          computed 4
          computed 6
          interrupted
          computed 12
          output: {4: [(1, 4), (2, 2)], 6: [(1, 6), (2, 3), (3, 2)], 12: [(1, 12), (2, 6), (3, 4), (4, 3), (6, 2)]}
        """,
    "seeds/recovery_loop.py": """\
          interrupted; the newest checkpoint is of superstep 3
          interrupted; the newest checkpoint is of superstep 6
          interrupted; the newest checkpoint is of superstep 9
          Done: {1: 1, 2: 4, 3: 9, 4: 16, 5: 25, 6: 36, 7: 49, 8: 64, 9: 81, 10: 100}
        """,
}

TESTED_BESIDES = {
    "seeds/plan_review.py",
    "demo.py",
    "inspected.py",
    *(f"service/{name}.py" for name in ("__init__", "__main__", "app", "claims", "following", "wire")),
}


@pytest.fixture
def run_script(tmp_path: Path) -> Callable[..., str]:
    """Runs an example in an empty directory and gives its output. It may warn of nothing and leave nothing behind."""
    here, scratch = tmp_path / "here", tmp_path / "scratch"
    here.mkdir()
    scratch.mkdir()

    def run(name: str, *arguments: str) -> str:
        command = [sys.executable, "-W", "error", str(EXAMPLES / name), *arguments]
        environment = {**os.environ, "TMPDIR": str(scratch), "PYTHONWARNINGS": "error"}
        ended = subprocess.run(
            command, cwd=here, env=environment, capture_output=True, text=True, timeout=60, check=False
        )
        assert (ended.returncode, ended.stderr) == (0, "")
        assert [*here.iterdir(), *scratch.iterdir()] == []
        return ended.stdout

    return run


@pytest.mark.parametrize("name", EXPECTED)
def test_an_example_prints_what_it_promises(name: str, run_script: Callable[..., str]) -> None:
    assert run_script(name) == dedent(EXPECTED[name])


@pytest.mark.parametrize("name", ON_EACH_STORAGE)
def test_an_example_prints_the_same_on_each_storage(name: str, run_script: Callable[..., str]) -> None:
    told = "".join(f"  {line}\n" for line in dedent(ON_EACH_STORAGE[name]).splitlines())
    assert run_script(name) == "".join(f"{storage}\n{told}" for storage in STORAGES)


def test_a_plan_waits_in_files_for_its_review_and_is_followed_once(run_script: Callable[..., str]) -> None:
    plan, waiting, result, refused = run_script("seeds/plan_review.py").splitlines()
    assert plan == "The plan: ['research: Draft a brief', 'write: Draft a brief']"
    assert waiting == "Waiting for: ['review-1']"
    assert result == "Final result: research: Draft a brief (done); write: Draft a brief (done)"
    assert refused.startswith("Refused: request 'review-1' of run ")


def test_a_human_may_also_say_no(run_script: Callable[..., str], tmp_path: Path) -> None:
    database = str(tmp_path / "runs.db")
    run_script("human_in_the_loop.py", "ask", database)
    assert "refused 120 euros" in run_script("human_in_the_loop.py", "answer", database, "no")


def test_every_example_is_run_by_a_test() -> None:
    found = {path.relative_to(EXAMPLES).as_posix() for path in EXAMPLES.rglob("*.py")}
    # These have test modules of their own, which run all that is there.
    apart = ("agents/", "agent_workflows/", "orchestrations/", "functional/")
    beside = {name for name in found if name.startswith(apart)}
    assert found - beside - TESTED_BESIDES == EXPECTED.keys() | ON_EACH_STORAGE.keys()
