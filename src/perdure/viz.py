"""Pictures of workflows."""


class WorkflowViz:
    """Being written."""
