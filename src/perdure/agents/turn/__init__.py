"""A turn: the loop of model and tool calls, recorded so that nothing is repeated."""
