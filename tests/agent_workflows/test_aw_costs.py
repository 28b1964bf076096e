"""Costs of large definitions and long answers, as counts of calls."""

from __future__ import annotations

import gc
import sys
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from tests.agent_workflows.nodes import clerk

from perdure.agent_workflows import Definition, Edge, Node, TextOutput
from perdure.agent_workflows.inputs import KnownValues, input_problems, task_text
from perdure.agent_workflows.mermaid import to_mermaid
from perdure.agent_workflows.messages import NodeOutput
from perdure.agent_workflows.outputs import InvalidValueError, output_keys, parse_value
from perdure.agent_workflows.plan import Plan

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, FrameType

AGENT = clerk([])[1]
ANYTHING: dict[str, Any] = {"type": "object"}


def calls_of(work: Callable[[], object], to: CodeType | None = None) -> int:
    """Count all calls, also of C functions, or the calls of one function."""
    count = 0

    def counted(frame: FrameType, event: str, _argument: object) -> None:
        nonlocal count
        count += event in {"call", "c_call"} if to is None else event == "call" and frame.f_code is to

    before = sys.getprofile()
    sys.setprofile(counted)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count


def numbered(number: int) -> str:
    return f"n{number}"


def unlike(number: int) -> str:
    """An id of which a picture can show no letter."""
    return chr(0x4E00 + number)


def chain(size: int, *, id_of: Callable[[int], str] = numbered) -> Plan:
    """A chain of nodes, each of which reads of the first, of one in the middle and of the one before."""
    nodes = [Node(id=id_of(0), agent=AGENT, output=TextOutput("k0"))]
    for number in range(1, size):
        template = f"{{{{k0}}}} {{{{k{number // 2}}}}} {{{{k{number - 1}}}}}"
        nodes.append(
            Node(id=id_of(number), agent=AGENT, output=TextOutput(f"k{number}"), template=template, reads=None)
        )
    edges = tuple(Edge(id_of(number - 1), id_of(number)) for number in range(1, size))
    return Plan(Definition(name="w", nodes=tuple(nodes), edges=edges))


def known(size: int) -> KnownValues:
    return KnownValues("go", outputs={f"n{number}": NodeOutput({f"k{number}": "x"}) for number in range(size)})


def test_what_nodes_write_is_found_out_once_for_all_who_read_it() -> None:
    for size in (50, 200):
        assert calls_of(partial(input_problems, chain(size)), to=output_keys.__code__) == size


def test_who_is_before_a_node_is_found_out_once_for_all_that_it_reads() -> None:
    plan = chain(50)
    assert calls_of(partial(input_problems, plan), to=Plan.leading_to.__code__) == 49


def test_a_task_is_rendered_of_what_was_found_before() -> None:
    costs: list[int] = []
    for size in (50, 200):
        plan, told = chain(size), known(size)
        assert task_text(plan, "n40", told) == "x x x"
        costs.append(calls_of(partial(task_text, plan, "n40", told)))
    assert costs[0] == costs[1] < 100


def test_what_was_found_for_a_plan_is_forgotten_with_it() -> None:
    plan = chain(3)
    input_problems(plan)
    gone = weakref.ref(plan)
    del plan
    gc.collect()
    assert gone() is None


def test_names_in_a_picture_are_found_in_time_that_grows_with_the_nodes() -> None:
    small, large = (calls_of(partial(to_mermaid, chain(size, id_of=unlike))) for size in (50, 200))
    assert large < 6 * small


@pytest.mark.parametrize(
    "text",
    ["```json" + "\n" * 300_000 + "x", '```json\n{"a": 1' + "\n" * 300_000, "\n" * 300_000 + "```", "`" * 300_000],
)
def test_no_answer_of_a_model_stops_the_process(text: str) -> None:
    with pytest.raises(InvalidValueError):
        parse_value(text, ANYTHING)


@pytest.mark.parametrize(
    "text",
    [
        '```json\n{"a": 1}\n```',
        '  ```\n\n{"a": 1}\n\n  ```  \n',
        '```JSON \r\n{"a": 1}\r\n```\r\n',
        '```\n{"a":\n1}\n```',
        '\n{"a": 1}\n',
    ],
)
def test_a_value_may_stand_between_fences(text: str) -> None:
    assert parse_value(text, ANYTHING) == {"a": 1}
