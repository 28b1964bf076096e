"""Sessions: the conversation of an agent, its history and its context providers."""
