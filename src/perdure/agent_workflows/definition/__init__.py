"""Definitions of agent workflows: values, conditions and JSON documents."""

from perdure.agent_workflows.definition.document import config_schema, definition_of, read_text, to_config
from perdure.agent_workflows.definition.values import AllOf, all_of

__all__ = ["AllOf", "all_of", "config_schema", "definition_of", "read_text", "to_config"]
