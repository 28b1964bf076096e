"""Conditions: evaluation, descriptions, and JSON round trips."""

from __future__ import annotations

import itertools
import json
import math
import re
from typing import Any

import pytest

from perdure.agent_workflows import (
    AgentWorkflowBuildError,
    And,
    AtLeast,
    AtMost,
    Condition,
    Contains,
    ContainsAll,
    ContainsAny,
    Empty,
    EndsWith,
    Equals,
    Exists,
    GreaterThan,
    LessThan,
    Matches,
    Not,
    NotEmpty,
    NotEquals,
    NotExists,
    Or,
    StartsWith,
    condition_of,
)

MISSING = object()
BILLING = Equals("intent", "billing")
URGENT = Equals("urgent", True)  # noqa: FBT003 - the value that is compared
NUMBERS = (0, 1, -3, 2.5, 10**400)
VALUES: tuple[Any, ...] = (
    *(None, True, False, *NUMBERS, math.inf, -math.inf, math.nan),
    *("", " \n", "7", "07", "1e9999", "-" + "9" * 5000, "7 points", "text", "\ud800", "٣"),
    *([], ["text"], [1, [2]], (), ("text",), {}, {"text": 1}, {"a": {"b": 1}}, {1: 2}, {"s"}, object(), b"text"),
)
COMPARED: tuple[Any, ...] = (None, True, 1, 1.5, "text", [1], {})
LEAVES: tuple[Condition, ...] = (
    *(kind("x") for kind in (Exists, NotExists, Empty, NotEmpty)),
    *(kind("x", value) for kind in (Equals, NotEquals, Contains) for value in COMPARED),
    *(kind("x", bound) for kind in (GreaterThan, LessThan, AtLeast, AtMost) for bound in (0, 2.5, -1, "text", 10**400)),
    *(kind("x.a", "text") for kind in (StartsWith, EndsWith)),
    *(kind("x", ["text", 1]) for kind in (ContainsAny, ContainsAll)),
    Matches("x", "^t.*t$"),
    Matches("x", "T", ignore_case=True),
)


def outputs_of(value: Any) -> dict[str, Any]:
    return {} if value is MISSING else {"x": value}


HOLDING: list[tuple[Condition, list[Any], list[Any]]] = [
    (Equals("x", "billing"), ["billing"], ["Billing", None, MISSING, ["billing"]]),
    (Equals("x", 1), [1, 1.0], [True, "1", MISSING]),
    (Equals("x", True), [True], [1, 1.0, "True", "true"]),  # noqa: FBT003 - the value that is compared
    (Equals("x", None), [None], [MISSING, 0, "", False]),
    (Equals("x", [1, {"a": None}]), [[1.0, {"a": None}], (1, {"a": None})], [[True, {"a": None}], [1, {}], [1]]),
    (NotEquals("x", 1), [True, "1", None, MISSING, [1]], [1, 1.0]),
    (Exists("x"), [0, False, "", [], "a"], [None, MISSING]),
    (NotExists("x"), [None, MISSING], [0, False, "", [], "a"]),
    (GreaterThan("x", 5), [6, 5.1, "7", " 7.5 ", "1e3", 10**400, math.inf], [5, "5", "7 points", True, None, MISSING]),
    (GreaterThan("x", 5), [], [[7], {"x": 7}, "", "seven", math.nan, "nan", "inf", "0x10", "1_000"]),
    (GreaterThan("x", 0), [1], [True]),
    (LessThan("x", 5), [4, "4", -math.inf], [5, "5", False, None, MISSING, "", math.nan]),
    (AtLeast("x", 5), [5, 5.0, "5", 6], [4.9, "4", None, MISSING]),
    (AtLeast("x", 0.8), [0.8, "0.8", " 0.80 ", "8e-1", "0.8000000000000000001"], [0.79, "0.7999999999999999999"]),
    (GreaterThan("x", 0.1), ["0.11", 0.2], ["0.1", "0.10", 0.1]),
    (AtMost("x", 0.1), ["0.1", 0.1, "0.09"], ["0.1000000000000000001"]),
    (LessThan("x", 1.1), ["1.09"], ["1.1", "1.10", 1.1]),
    (AtMost("x", 5), [5, "5.0", -1], [5.1, "6", None, MISSING]),
    (GreaterThan("x", "2031-05-01"), ["2031-06-01", "9"], ["2030-12-31", 2032, None, MISSING]),
    (LessThan("x", "9"), ["10"], [1, "9"]),
    (Contains("x", "urgent"), ["very urgent", ["urgent"], {"urgent": 0}], ["Urgent", ["very urgent"], None, MISSING]),
    (Contains("x", 1), [[1], [1.0]], [[True], "1", 1, {"1": 1}]),
    (ContainsAny("x", ["a", "b"]), ["xb", ["a"], {"b": 1}], ["x", [], None, MISSING, 1]),
    (ContainsAll("x", ["a", "b"]), ["ab", ["b", "a", "c"]], ["a", ["a"], None, MISSING]),
    (StartsWith("x", "Yes"), ["Yes, it is"], ["yes", ["Yes"], None, MISSING, 1]),
    (EndsWith("x", "DONE"), ["all DONE"], ["DONE.", ["DONE"], None, MISSING]),
    (Matches("x", "[0-9]{3}"), ["call 911 now"], ["91", 911, ["911"], None, MISSING]),
    (Matches("x", "^yes$", ignore_case=True), ["YES", "yes"], ["yes it is"]),
    (Empty("x"), ["", " \n", [], {}, None, MISSING], [0, False, "a", [None], {"a": None}]),
    (NotEmpty("x"), [0, False, "a", [None]], ["", " \n", [], {}, None, MISSING]),
]


@pytest.mark.parametrize(("condition", "holding", "others"), HOLDING)
def test_a_condition_holds_for_these_values_and_not_for_others(
    condition: Condition, holding: list[Any], others: list[Any]
) -> None:
    assert [value for value in holding if not condition.holds(outputs_of(value))] == []
    assert [value for value in others if condition.holds(outputs_of(value))] == []


@pytest.mark.parametrize("condition", LEAVES, ids=Condition.describe)
def test_a_condition_answers_whatever_the_outputs_are(condition: Condition) -> None:
    for value in VALUES:
        for outputs in ({"x": value}, {"x": {"a": value}}, {}):
            assert condition.holds(outputs) in {True, False}
            assert (~condition).holds(outputs) is not condition.holds(outputs)


def test_a_dotted_key_leads_into_dicts() -> None:
    condition = GreaterThan("result.score", 5)
    assert condition.holds({"result": {"score": 6}})
    assert condition.holds({"result.score": 6, "result": {"score": 1}})  # As it is written wins.
    assert not condition.holds({"result": [{"score": 6}]})
    assert not condition.holds({"result": "score"})
    assert not condition.holds({"score": 6})
    assert condition.fields() == {"result"}


def test_conditions_combine() -> None:
    both, either, no = BILLING & URGENT, BILLING | URGENT, ~BILLING
    assert (both, either, no) == (And(BILLING, URGENT), Or(BILLING, URGENT), Not(BILLING))
    assert [both.holds({"intent": i, "urgent": u}) for i in ("billing", "x") for u in (True, False)] == [1, 0, 0, 0]
    assert [either.holds({"intent": i, "urgent": u}) for i in ("billing", "x") for u in (True, False)] == [1, 1, 1, 0]
    assert no.holds({})
    assert ~no is BILLING
    assert (BILLING & URGENT & no).conditions == (BILLING, URGENT, no)
    assert (both | no).fields() == {"intent", "urgent"}


@pytest.mark.parametrize(
    ("condition", "words"),
    [
        (BILLING, "intent == 'billing'"),
        (NotEquals("a", None), "a != None"),
        (Exists("a.b"), "a.b exists"),
        (NotExists("a"), "a does not exist"),
        (GreaterThan("a", 1), "a > 1"),
        (LessThan("a", 1.5), "a < 1.5"),
        (AtLeast("a", 1), "a >= 1"),
        (AtMost("a", "x"), "a <= 'x'"),
        (Contains("a", "two\nlines"), "a contains 'two\\nlines'"),
        (ContainsAny("a", ["x", 1]), "a contains any of 'x', 1"),
        (ContainsAll("a", ["x", 1]), "a contains all of 'x', 1"),
        (StartsWith("a", "x"), "a starts with 'x'"),
        (EndsWith("a", "x"), "a ends with 'x'"),
        (Matches("a", "x"), "a matches 'x'"),
        (Matches("a", "x", ignore_case=True), "a matches 'x', in letters of any case"),
        (Empty("a\nb"), "'a\\nb' is empty"),
        (NotEmpty("a"), "a is not empty"),
        (And(BILLING, Exists("a") | Exists("b")), "intent == 'billing' and (a exists or b exists)"),
        (Or(~BILLING, Exists("a")), "not (intent == 'billing') or a exists"),
    ],
)
def test_a_condition_says_in_words_what_it_asks(condition: Condition, words: str) -> None:
    assert condition.describe() == words


def test_every_condition_is_read_back_as_it_was_written() -> None:
    pairs = [kind(*two) for two in itertools.product(LEAVES, repeat=2) for kind in (And, Or)]
    nested = [Not(pairs[0]), And(*LEAVES), Or(Not(LEAVES[0]), And(Or(LEAVES[1])))]
    for condition in (*LEAVES, *(~leaf for leaf in LEAVES), *pairs, *nested):
        written = json.loads(json.dumps(condition.to_dict()))
        again = condition_of(written, "when")
        assert again == condition
        assert hash(again) == hash(condition)
        assert again.to_dict() == written
        assert again.describe() == condition.describe()


def test_conditions_differ_where_only_the_kind_of_a_value_does() -> None:
    kinds = [Equals("x", True), Equals("x", 1), Equals("x", "1"), NotEquals("x", 1), Equals("y", 1)]  # noqa: FBT003
    assert len(set(kinds)) == len(kinds)


def test_a_condition_keeps_its_value_when_the_list_it_was_made_of_changes() -> None:
    given = ["a"]
    condition = Equals("x", given)
    given.append("b")
    condition.to_dict()["value"].append("c")
    assert condition.holds({"x": ["a"]})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Matches("x", "(unclosed"), "'(unclosed' is not a regular expression: missing )"),
        (lambda: Matches("x", "a{99999999999999999999}"), "is not a regular expression"),
        (lambda: Equals("", 1), "String should match pattern"),
        (lambda: Equals("a..b", 1), "String should match pattern"),
        (lambda: Equals(1, 2), "Input should be a valid string"),  # pyright: ignore[reportArgumentType]
        (lambda: Equals("x", math.nan), "Input should be a finite number"),
        (lambda: Equals("x", {"s"}), "input was not a valid JSON value"),  # pyright: ignore[reportArgumentType]
        (lambda: Equals("x", {1: 2}), "Input should be a valid string"),  # pyright: ignore[reportArgumentType]
        (lambda: GreaterThan("x", math.inf), "Input should be a finite number"),
        (lambda: GreaterThan("x", True), "Input should be a valid number"),  # noqa: FBT003 - what is refused
        (lambda: GreaterThan("x", None), "Input should be a valid number"),  # pyright: ignore[reportArgumentType]
        (lambda: StartsWith("x", 1), "Input should be a valid string"),  # pyright: ignore[reportArgumentType]
        (lambda: ContainsAny("x", ()), "at least 1 item"),
        (lambda: ContainsAny("x", "text"), "Input should be a valid tuple"),  # pyright: ignore[reportArgumentType]
        (lambda: ContainsAll("x", {"a": 1}), "Input should be a valid tuple"),  # pyright: ignore[reportArgumentType]
        (lambda: ContainsAny("x", b"ab"), "Input should be a valid tuple"),  # pyright: ignore[reportArgumentType]
        (lambda: Matches("x", "a", ignore_case=1), "valid boolean"),  # pyright: ignore[reportArgumentType]
        (And, "give at least one"),
    ],
)
def test_a_condition_with_a_wrong_value_is_refused_at_once(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        make()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: And(BILLING, Equals), "is made of conditions"),  # pyright: ignore[reportArgumentType]
        (lambda: BILLING and URGENT, "combine conditions with &, | and ~"),
    ],
)
def test_what_is_no_condition_is_refused_at_once(make: Any, message: str) -> None:
    with pytest.raises(TypeError) as caught:
        make()
    assert message in str(caught.value)


def test_all_that_is_wrong_with_a_written_condition_is_told_with_its_path() -> None:
    wrong: dict[str, Any] = {
        "type": "and",
        "conditions": [
            {"type": "equals", "key": "a"},
            {"type": "or", "conditions": []},
            {"type": "nope", "key": "a"},
            {"type": "not", "condition": {"type": "matches", "key": "a", "pattern": "("}},
            {"type": "exists", "key": "a", "value": 1},
            "x",
        ],
    }
    with pytest.raises(AgentWorkflowBuildError) as caught:
        condition_of(wrong, "edges[0].when")
    paths = [problem.split(":")[0] for problem in caught.value.problems]
    assert paths == [
        "edges[0].when.conditions[0].value",
        "edges[0].when.conditions[1].conditions",
        "edges[0].when.conditions[2]",
        "edges[0].when.conditions[3].condition.pattern",
        "edges[0].when.conditions[4].value",
        "edges[0].when.conditions[5]",
    ]


def test_conditions_that_are_nested_too_deeply_are_refused_and_never_overflow() -> None:
    deep: dict[str, Any] = {"type": "exists", "key": "a"}
    for _ in range(5000):
        deep = {"type": "not", "condition": deep}
    with pytest.raises(AgentWorkflowBuildError):
        condition_of(deep)
    condition: Condition = BILLING
    for _ in range(49):
        condition = Not(condition)
    assert condition_of(condition.to_dict()) == condition
