"""Workflows as pictures: Mermaid and DOT as text, and files that Graphviz draws."""

from perdure.viz.viz import WorkflowViz as WorkflowViz
