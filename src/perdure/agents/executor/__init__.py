"""`AgentExecutor`: an agent as a node of a workflow."""
