"""Every error of agents, models and tools that perdure raises on purpose.

AgentFrameworkException
├── AgentException
│   ├── AgentInvalidRequestException          what an agent was asked to do makes no sense
│   └── AgentInvalidResponseException         what came back makes no sense
│       └── ResponseValueError                an answer is not the value that it was to be (a ValueError)
├── ChatClientException                       a model could not be asked
│   ├── ChatClientInvalidAuthException        it does not know who asks, or does not let them
│   ├── ChatClientInvalidRequestException     it did not take the request: trying again is of no use
│   └── ChatClientInvalidResponseException    it gave what can't be read
├── ToolException                             a tool could not be called
│   ├── ToolExecutionException                it failed
│   └── UserInputRequiredException            it can't go on without whoever uses the agent
├── MiddlewareException
│   └── MiddlewareTermination                 raised by a middleware: enough, this is the result
└── ContentError
    ├── AdditionItemMismatch                  pieces of different things can't be put together (a TypeError)
    └── OptionsError                          an option that no model can take (a ValueError)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perdure.errors import AgentFrameworkException

if TYPE_CHECKING:
    from collections.abc import Sequence


class AgentException(AgentFrameworkException):
    """Anything that goes wrong in running an agent."""


class AgentInvalidRequestException(AgentException):
    """What an agent was asked to do makes no sense."""


class AgentInvalidResponseException(AgentException):
    """What came back makes no sense: an answer to nothing that was asked, a text that is not the JSON it should be."""


class ResponseValueError(AgentInvalidResponseException, ValueError):
    """An answer is not the value that it was to be, or nobody can say which class it was to be."""


class ChatClientException(AgentFrameworkException):
    """A model could not be asked. What was already recorded of the turn stands; trying again goes on behind it."""


class ChatClientInvalidAuthException(ChatClientException):
    """The provider does not know who asks, or does not let them."""


class ChatClientInvalidRequestException(ChatClientException):
    """The provider did not take the request. The same request again fails again."""


class ChatClientInvalidResponseException(ChatClientException):
    """The provider gave what can't be read."""


class ToolException(AgentFrameworkException):
    """A tool could not be called."""


class ToolExecutionException(ToolException):
    """A tool failed. The model is told."""


class UserInputRequiredException(ToolException):
    """Raised by a tool that can't go on without whoever uses the agent: `contents` is what they are asked."""

    def __init__(self, contents: Sequence[Any], message: str = "the tool needs an answer from outside") -> None:
        self.contents = list(contents)
        super().__init__(message)


class MiddlewareException(AgentFrameworkException):
    """Anything that goes wrong around a call."""


class MiddlewareTermination(MiddlewareException):
    """Raised by a middleware: nothing more is called. `result`, if given, is what comes back."""

    def __init__(self, message: str = "a middleware ended the call", *, result: Any = None) -> None:
        self.result = result
        super().__init__(message)


class ContentError(AgentFrameworkException):
    """A content that makes no sense."""


class AdditionItemMismatch(ContentError, TypeError):
    """Pieces of different things can't be put together."""


class OptionsError(ContentError, ValueError):
    """An option that no model can take."""
