"""Tools to test your own workflows, agents and stores.

| module | contents |
|---|---|
| `ScriptedChatClient` | a model that follows a script: no provider, no key |
| `perdure.testing.clock` | a clock that tests set, or that skips waits: give it to the storage |
| `perdure.testing.resume` | kill real processes that run your workflow, and check six properties |
| `perdure.testing.crash` | fail a store at each of its calls, in one process |
| `perdure.testing.stores` | the conformance suite for a store, to subclass in pytest |
| `perdure.testing.storages` | the conformance suite for an object with the six storage methods |
| `perdure.testing.disk` | a disk that loses what was not synced |
"""

from perdure.testing.scripted import Reply, Script, ScriptedCall, ScriptedChatClient, ScriptEndedError, ToolCall

__all__ = ["Reply", "Script", "ScriptEndedError", "ScriptedCall", "ScriptedChatClient", "ToolCall"]
