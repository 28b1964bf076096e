"""The soak mode: `PERDURE_SOAK` in the environment, as `make soak` sets it.

`make test` keeps examples of every kind of kill and fault. The soak runs all seeds, all points and all stores.
"""

from __future__ import annotations

import os

IS_SOAK = "PERDURE_SOAK" in os.environ

MEMORY = ["memory"] if IS_SOAK else []
"""The memory store runs the code of the SQLite store, so beside SQLite it is a matter of the soak."""
