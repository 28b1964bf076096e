"""`@handler` and `@response_handler`: signatures, types, inheritance, dispatch."""

from typing import Any, Generic, Never, TypeVar

import pytest
import typing_extensions

from perdure import Executor, WorkflowContext, handler, response_handler
from perdure.graph import handler_of, response_handler_of

T = TypeVar("T")


class Animal: ...


class Dog(Animal): ...


class Puppy(Dog): ...


def name_of_handler(executor: Executor, message: object) -> str | None:
    found = handler_of(executor, message)
    return None if found is None else getattr(found, "__name__", None)


def test_a_handler_has_exactly_a_message_and_a_context() -> None:
    with pytest.raises(ValueError, match=r"must take exactly \(self, message, ctx\), it takes \(self, message\)"):

        class _Few(Executor):  # pyright: ignore[reportUnusedClass]
            @handler
            async def go(self, message: int) -> None: ...

    with pytest.raises(ValueError, match=r"must take exactly \(self, message, ctx\)"):

        class _Many(Executor):  # pyright: ignore[reportUnusedClass]
            @handler
            async def go(self, message: int, ctx: WorkflowContext, more: int) -> None: ...


def test_a_message_without_an_annotation_is_refused() -> None:
    async def go(self: Executor, message, ctx: WorkflowContext) -> None: ...  # noqa: ANN001  # pyright: ignore[reportUnknownParameterType, reportMissingParameterType]

    with pytest.raises(ValueError, match=r"needs a type annotation for 'message'"):
        handler(go)  # pyright: ignore[reportUnknownArgumentType]


def test_a_context_without_an_annotation_is_refused() -> None:
    async def go(self: Executor, message: int, ctx) -> None: ...  # noqa: ANN001  # pyright: ignore[reportUnknownParameterType, reportMissingParameterType]

    with pytest.raises(ValueError, match=r"needs 'ctx' annotated as WorkflowContext"):
        handler(go)  # pyright: ignore[reportUnknownArgumentType]


def test_a_context_that_is_no_workflow_context_is_refused() -> None:
    async def go(self: Executor, message: int, ctx: dict[str, int]) -> None: ...

    with pytest.raises(ValueError, match=r"must be annotated WorkflowContext.*not dict"):
        handler(go)
    with pytest.raises(ValueError, match=r"must be annotated WorkflowContext.*not dict"):
        handler(input=int)(go)


def test_a_value_in_the_brackets_of_a_context_is_refused() -> None:
    async def go(self: Executor, message: int, ctx: Any) -> None: ...

    go.__annotations__["ctx"] = "WorkflowContext[3]"

    with pytest.raises(ValueError, match=r"3 in .* is a value, not a type"):
        handler(go)


def test_three_types_in_the_brackets_of_a_context_are_refused() -> None:
    async def go(self: Executor, message: int, ctx: Any) -> None: ...

    go.__annotations__["ctx"] = "WorkflowContext[int, str, bool]"

    with pytest.raises(ValueError, match="WorkflowContext"):
        handler(go)


def test_never_declares_nothing_and_any_declares_anything() -> None:
    class Node(Executor):
        @handler
        async def a(self, message: int, ctx: WorkflowContext[Never, str]) -> None: ...

        @handler
        async def b(self, message: str, ctx: WorkflowContext[typing_extensions.Never, bytes]) -> None: ...

    class Open(Executor):
        @handler
        async def a(self, message: int, ctx: WorkflowContext[Any, Any]) -> None: ...

    assert Node("n").output_types == []
    assert set(Node("n").workflow_output_types) == {str, bytes}
    assert (Open("o").output_types, Open("o").workflow_output_types) == ([Any], [Any])


def test_explicit_types_replace_the_annotations() -> None:
    class Node(Executor):
        @handler(input=str, output=int | bytes, workflow_output=float)
        async def go(self, message: Any, ctx: WorkflowContext[bool, bool]) -> None: ...

        @handler(input=list[int])
        async def bare(self, message, ctx) -> None: ...  # noqa: ANN001  # pyright: ignore[reportUnknownParameterType, reportMissingParameterType]

    node = Node("n")
    assert node.input_types == [str, list[int]]
    assert set(node.output_types) == {int, bytes}
    assert node.workflow_output_types == [float]


def test_explicit_types_may_be_strings() -> None:
    class Node(Executor):
        @handler(input="Animal", output="Dog | Puppy", workflow_output="list[Dog]")
        async def go(self, message: Any, ctx: WorkflowContext) -> None: ...

    node = Node("n")
    assert node.input_types == [Animal]
    assert set(node.output_types) == {Dog, Puppy}
    assert node.workflow_output_types == [list[Dog]]


def test_an_explicit_type_that_can_not_be_found_is_a_name_error() -> None:
    async def go(self: Executor, message: Any, ctx: WorkflowContext) -> None: ...

    with pytest.raises(NameError, match="Unicorn"):
        handler(input="Unicorn")(go)


def test_explicit_types_need_an_input() -> None:
    with pytest.raises(ValueError, match="needs input="):
        handler(output=int)


def test_a_type_variable_is_refused_with_advice() -> None:
    with pytest.raises(ValueError, match=r"type variable.*state the types explicitly"):

        class _Generic(Executor, Generic[T]):  # pyright: ignore[reportUnusedClass]
            @handler
            async def go(self, message: list[T], ctx: WorkflowContext) -> None: ...

    with pytest.raises(ValueError, match="type variable"):

        class _Sender(Executor, Generic[T]):  # pyright: ignore[reportUnusedClass]
            @handler
            async def go(self, message: int, ctx: WorkflowContext[T]) -> None: ...

    class Fixed(Executor, Generic[T]):
        @handler(input=int, output=str)
        async def go(self, message: T, ctx: WorkflowContext[T]) -> None: ...

    assert Fixed[int]("f").input_types == [int]


def test_a_handler_stays_callable_and_keeps_its_name() -> None:
    class Node(Executor):
        @handler
        async def go(self, message: int, ctx: WorkflowContext) -> None:
            """Goes."""

    assert Node.go.__name__ == "go"
    assert Node.go.__doc__ == "Goes."


class ByBreed(Executor):
    """Alphabetical order would choose wrongly each time."""

    @handler
    async def a_animal(self, message: Animal, ctx: WorkflowContext) -> None: ...

    @handler
    async def b_dog(self, message: Dog, ctx: WorkflowContext) -> None: ...

    @handler
    async def a_int(self, message: int, ctx: WorkflowContext) -> None: ...

    @handler
    async def z_bool(self, message: bool, ctx: WorkflowContext) -> None: ...  # noqa: FBT001 - a message

    @handler
    async def a_list(self, message: list[Any], ctx: WorkflowContext) -> None: ...

    @handler
    async def z_strings(self, message: list[str], ctx: WorkflowContext) -> None: ...

    @handler
    async def a_anything(self, message: object, ctx: WorkflowContext) -> None: ...


@pytest.mark.parametrize(
    ("message", "name"),
    [
        (Animal(), "a_animal"),
        (Dog(), "b_dog"),
        (Puppy(), "b_dog"),
        (1, "a_int"),
        (True, "z_bool"),
        ([1], "a_list"),
        (["x"], "z_strings"),
        (None, "a_anything"),
        (1.5, "a_anything"),
    ],
)
def test_the_most_specific_handler_is_chosen_whatever_it_is_called(message: object, name: str) -> None:
    assert name_of_handler(ByBreed("b"), message) == name


def test_of_handlers_that_do_not_compare_the_first_defined_is_chosen() -> None:
    class Left: ...

    class Right: ...

    class Both(Left, Right): ...

    class Node(Executor):
        @handler
        async def z_right(self, message: Right, ctx: WorkflowContext) -> None: ...

        @handler
        async def a_left(self, message: Left, ctx: WorkflowContext) -> None: ...

    assert name_of_handler(Node("n"), Both()) == "z_right"


def test_a_union_counts_by_the_member_that_fits() -> None:
    class Node(Executor):
        @handler
        async def a_wide(self, message: Animal | int, ctx: WorkflowContext) -> None: ...

        @handler
        async def b_narrow(self, message: Dog | str, ctx: WorkflowContext) -> None: ...

    node = Node("n")
    assert [name_of_handler(node, m) for m in (Puppy(), Animal(), 1, "x", 1.5)] == [
        *("b_narrow", "a_wide", "a_wide", "b_narrow"),
        None,
    ]


class Base(Executor):
    @handler
    async def numbers(self, message: int, ctx: WorkflowContext[int]) -> None: ...

    @handler
    async def words(self, message: str, ctx: WorkflowContext[str]) -> None: ...


def test_handlers_of_base_classes_are_found() -> None:
    class More(Base):
        @handler
        async def floats(self, message: float, ctx: WorkflowContext) -> None: ...

    assert More("m").input_types == [int, str, float]


def test_an_override_without_the_decorator_takes_the_handler_away() -> None:
    class Less(Base):
        async def numbers(self, message: int, ctx: WorkflowContext[int]) -> None: ...

    assert Less("l").input_types == [str]


def test_a_decorated_override_replaces_the_handler() -> None:
    class Other(Base):
        @handler
        async def numbers(self, message: bytes, ctx: WorkflowContext[int]) -> None: ...  # pyright: ignore[reportIncompatibleMethodOverride]

    assert set(Other("o").input_types) == {bytes, str}


def test_a_second_method_for_a_type_of_the_base_class_is_refused() -> None:
    class Clash(Base):
        @handler
        async def also_numbers(self, message: int, ctx: WorkflowContext) -> None: ...

    with pytest.raises(ValueError, match="both 'numbers' and 'also_numbers' handle int"):
        Clash("c")


def test_a_response_handler_has_exactly_a_request_a_response_and_a_context() -> None:
    async def go(self: Executor, request: str, ctx: WorkflowContext) -> None: ...

    with pytest.raises(ValueError, match=r"must take exactly \(self, original_request, response, ctx\)"):
        response_handler(go)


def test_a_response_handler_needs_annotations_of_request_and_response_but_not_of_the_context() -> None:
    async def go(self: Executor, request: str, response, ctx) -> None: ...  # noqa: ANN001  # pyright: ignore[reportUnknownParameterType, reportMissingParameterType]

    with pytest.raises(ValueError, match="needs a type annotation for 'response'"):
        response_handler(go)  # pyright: ignore[reportUnknownArgumentType]

    class Node(Executor):
        @handler
        async def go(self, message: int, ctx: WorkflowContext) -> None: ...

        @response_handler  # pyright: ignore[reportUnknownArgumentType]
        async def on(self, request: str, response: bool, ctx) -> None: ...  # noqa: ANN001, FBT001  # pyright: ignore[reportUnknownParameterType, reportMissingParameterType]

    assert Node("n").is_request_supported(str, bool)


def test_explicit_types_of_a_response_handler_need_both_request_and_response() -> None:
    with pytest.raises(ValueError, match="both request= and response="):
        response_handler(request=str)
    with pytest.raises(ValueError, match="both request= and response="):
        response_handler(response=str, output=int)


def test_explicit_types_of_a_response_handler_replace_the_annotations() -> None:
    class Node(Executor):
        @handler
        async def go(self, message: int, ctx: WorkflowContext) -> None: ...

        @response_handler(request="Animal", response=bool, output=Dog, workflow_output=str)
        async def on(self, request: Any, response: Any, ctx: WorkflowContext) -> None: ...

    node = Node("n")
    assert node.is_request_supported(Dog, bool)
    assert (node.output_types, node.workflow_output_types) == ([Dog], [str])


def test_the_most_specific_response_handler_is_chosen() -> None:
    class Node(Executor):
        @handler
        async def go(self, message: int, ctx: WorkflowContext) -> None: ...

        @response_handler
        async def a_any(self, request: Animal, response: object, ctx: WorkflowContext) -> None: ...

        @response_handler
        async def b_dog(self, request: Dog, response: bool, ctx: WorkflowContext) -> None: ...  # noqa: FBT001 - an answer

        @response_handler
        async def c_flag(self, request: Animal, response: bool, ctx: WorkflowContext) -> None: ...  # noqa: FBT001 - an answer

    def chosen(request: object, *, response: object) -> str | None:
        found = response_handler_of(Node("n"), request, response)
        return None if found is None else getattr(found, "__name__", None)

    assert chosen(Dog(), response=True) == "b_dog"
    assert chosen(Dog(), response="maybe") == "a_any"
    assert chosen(Animal(), response=True) == "c_flag"
    assert chosen("no animal", response=True) is None
