"""Pictures of workflows: Mermaid and DOT as text, and files that Graphviz draws."""

from perdure.viz.viz import WorkflowViz

__all__ = ["WorkflowViz"]
