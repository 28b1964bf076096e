"""What users need to test their own workflows, agents and stores.

`ScriptedChatClient` is a model that follows a script. `perdure.testing.resume` kills real processes that run a workflow
of yours, and says whether six properties hold. `perdure.testing.crash` does it in one process, at every call to the
store. `perdure.testing.stores` and `perdure.testing.storages` hold suites for pytest to subclass: what every store, and
every object with the six methods, must do; `perdure.testing.disk` is a disk that loses what was not synced.
`perdure.testing.clock` is a clock to set.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from perdure.testing.script import Reply as Reply
    from perdure.testing.script import Script as Script
    from perdure.testing.script import ToolCall as ToolCall
    from perdure.testing.scripted import ScriptedCall as ScriptedCall
    from perdure.testing.scripted import ScriptedChatClient as ScriptedChatClient
    from perdure.testing.scripted import ScriptEndedError as ScriptEndedError


def __getattr__(name: str) -> object:
    # Who tests a store does not pay for agents.
    if name in {"Reply", "Script", "ToolCall"}:
        from perdure.testing import script  # noqa: PLC0415

        return getattr(script, name)
    if name in {"ScriptedCall", "ScriptedChatClient", "ScriptEndedError"}:
        from perdure.testing import scripted  # noqa: PLC0415

        return getattr(scripted, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
