"""Conditions of edges: questions about the outputs of a node, as data that can be written down and read back."""

from perdure.agent_workflows.conditions_base import And as And
from perdure.agent_workflows.conditions_base import Condition as Condition
from perdure.agent_workflows.conditions_base import Not as Not
from perdure.agent_workflows.conditions_base import Or as Or
from perdure.agent_workflows.conditions_fields import Empty as Empty
from perdure.agent_workflows.conditions_fields import Equals as Equals
from perdure.agent_workflows.conditions_fields import Exists as Exists
from perdure.agent_workflows.conditions_fields import NotEmpty as NotEmpty
from perdure.agent_workflows.conditions_fields import NotEquals as NotEquals
from perdure.agent_workflows.conditions_fields import NotExists as NotExists
from perdure.agent_workflows.conditions_order import AtLeast as AtLeast
from perdure.agent_workflows.conditions_order import AtMost as AtMost
from perdure.agent_workflows.conditions_order import GreaterThan as GreaterThan
from perdure.agent_workflows.conditions_order import LessThan as LessThan
from perdure.agent_workflows.conditions_parts import Contains as Contains
from perdure.agent_workflows.conditions_parts import ContainsAll as ContainsAll
from perdure.agent_workflows.conditions_parts import ContainsAny as ContainsAny
from perdure.agent_workflows.conditions_parts import EndsWith as EndsWith
from perdure.agent_workflows.conditions_parts import Matches as Matches
from perdure.agent_workflows.conditions_parts import StartsWith as StartsWith
from perdure.agent_workflows.conditions_reading import condition_of as condition_of
