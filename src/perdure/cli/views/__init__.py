"""Plain dicts about the runs of a store, for every program that shows them: the command, or a JSON API.

They need the store alone. SCHEMA is the version of their meaning: it grows when a key is renamed, removed or means
something else. New keys do not change it.
"""

from perdure.cli.views.calls import call_views
from perdure.cli.views.doctor import doctor_views
from perdure.cli.views.graph import graph_view, picture
from perdure.cli.views.text import moment, safe, typed
from perdure.cli.views.why import NOWHERE, open_requests, place, why_view
from perdure.inspector.views import SCHEMA, Row, checkpoint_view, event_view, plain, request_view, run_view

__all__ = [
    "NOWHERE",
    "SCHEMA",
    "Row",
    "call_views",
    "checkpoint_view",
    "doctor_views",
    "event_view",
    "graph_view",
    "moment",
    "open_requests",
    "picture",
    "place",
    "plain",
    "request_view",
    "run_view",
    "safe",
    "typed",
    "why_view",
]
