"""The error of a provider that does not want to hear what was said."""

from __future__ import annotations

from perdure.agent_errors import ChatClientInvalidRequestException


class OpenAIContentFilterException(ChatClientInvalidRequestException):
    """The provider's filter did not let the conversation through. The same conversation again fails again."""
