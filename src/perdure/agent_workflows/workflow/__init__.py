"""Built agent workflows: running and resuming executions, and using a workflow as an agent, a tool or a node."""
