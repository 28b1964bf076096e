"""Checks of participants and of the options for outputs."""

from __future__ import annotations

from typing import Any

import pytest
from tests.orchestrations.chain_team import Shouter, team

from perdure import Agent
from perdure.orchestrations.builder import Outputs
from perdure.orchestrations.participants import check_participants, participant_name
from perdure.testing import ScriptedChatClient


def test_participants_are_called_by_their_names() -> None:
    (writer,) = team(writer=["x"]).agents
    assert [participant_name(each) for each in (writer, Shouter("loud"), "critic")] == ["writer", "loud", "critic"]


@pytest.mark.parametrize(("given", "error", "says"), [
    ([], ValueError, "participants is empty"),
    ("writer", TypeError, "not 'writer'"),
    (["writer"], TypeError, "not a name: 'writer'"),
    ([object()], TypeError, "an agent or an executor, not a object"),
    ([Shouter("loud"), Shouter("loud")], ValueError, "two participants are called 'loud'"),
    (Shouter("loud"), TypeError, "a list of agents and executors"),
])  # fmt: skip
def test_what_is_no_participant_is_refused(given: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        check_participants(given)


def test_one_agent_does_not_take_part_twice() -> None:
    (writer,) = team(writer=["x"]).agents
    with pytest.raises(ValueError, match="participant 'writer' is given twice"):
        check_participants([writer, writer])


def test_agents_without_names_are_told_that_they_have_none() -> None:
    nameless = [Agent(ScriptedChatClient(["Hi."])) for _ in range(2)]
    for given in (nameless, nameless[:1] * 2):
        with pytest.raises(ValueError, match=r"two participants have no name.*name="):
            check_participants(given)


def test_an_agent_and_an_executor_need_two_names() -> None:
    with pytest.raises(ValueError, match="two participants are called 'loud'"):
        check_participants([*team(loud=["x"]).agents, Shouter("loud")])


def test_an_agent_without_a_name_takes_part_only_where_nobody_calls_it() -> None:
    nameless = Agent(ScriptedChatClient(["x"]))
    assert check_participants([nameless]) == [nameless]
    with pytest.raises(ValueError, match="a participant has no name"):
        check_participants([nameless], needs_names=True)


NAMES = ["a", "b", "c"]


CHOICES: list[tuple[Any, Any, tuple[list[str], list[str]]]] = [
    (None, None, (["c"], [])),
    ("all", None, (NAMES, [])),
    (["a"], None, (["a"], [])),
    (["a"], "all_other", (["a"], ["b", "c"])),
    ([], "all_other", ([], NAMES)),
    (None, "all_other", ([], NAMES)),
    (None, "all", ([], NAMES)),
    (None, ["a"], (["c"], ["a"])),
    (None, ["c"], ([], ["c"])),
    (["b"], ["c", "a"], (["b"], ["c", "a"])),
]


@pytest.mark.parametrize(("output_from", "intermediate", "expected"), CHOICES)
def test_outputs_are_those_of_the_participants_that_are_named(
    output_from: Any, intermediate: Any, expected: tuple[list[str], list[str]]
) -> None:
    assert Outputs(output_from, intermediate).resolve_names(NAMES, default=["c"]) == expected


@pytest.mark.parametrize(("output_from", "intermediate", "says"), [
    ("all_other", None, "'all_other' is for intermediate_output_from"),
    ("a", None, "a list of participants or 'all', not 'a'"),
    (None, "some", "'all' or 'all_other', not 'some'"),
    (["x"], None, "output_from names 'x', which is not a participant; the participants are 'a', 'b', 'c'"),
    (None, ["x"], "intermediate_output_from names 'x'"),
    (["a", "a"], None, "output_from names 'a' twice"),
    (["a"], ["a"], "both name 'a'"),
    ("all", "all", "both name 'a', 'b', 'c'"),
    ([], None, "both empty"),
    ([], [], "both empty"),
    (None, [], "both empty"),
])  # fmt: skip
def test_outputs_of_nobody_or_of_one_twice_are_refused(output_from: Any, intermediate: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Outputs(output_from, intermediate).resolve_names(NAMES, default=["c"])


def test_agents_and_executors_name_themselves() -> None:
    (writer,) = team(writer=["x"]).agents
    loud = Shouter("loud")
    assert Outputs([writer], [loud]).resolve_names(["writer", "loud"]) == (["writer"], ["loud"])
