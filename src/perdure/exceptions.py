"""All errors, under the module name that agent-framework uses for them."""

from perdure.errors import *  # noqa: F403
