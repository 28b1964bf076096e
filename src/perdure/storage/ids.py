"""Rules for ids, and the file name of an id."""

from __future__ import annotations

import functools
import hashlib
import posixpath
import unicodedata
from urllib.parse import quote

from perdure.errors import WorkflowCheckpointException

RUN_ID_LENGTH_MAX = 200
CHECKPOINT_ID_LENGTH_MAX = 220
"""Room for a run id followed by "@" and a number."""

APART = "perdure:"
"""Prefix of tenants that hold perdure's own data beside the runs: conversations, definitions."""

_UNPRINTABLE = frozenset({"Cc", "Cs", "Zl", "Zp"})
_SAFE_IN_FILE_NAMES = "@+=,-_."
_FILE_NAME_LENGTH_MAX = 180
_FILE_NAME_PREFIX_LENGTH = 120


def _require_id(kind: str, length_max: int, value: str) -> None:
    """Raise WorkflowCheckpointException for a string that can't be an id."""
    if not value:
        raise WorkflowCheckpointException(f"a {kind} can't be empty; give one")
    if len(value) > length_max:
        raise WorkflowCheckpointException(
            f"the {kind} {value[:40]!r}... has {len(value)} characters, more than {length_max}; shorten it"
        )
    if not value.isprintable() and any(unicodedata.category(character) in _UNPRINTABLE for character in value):
        raise WorkflowCheckpointException(f"the {kind} {value!r} has control characters in it; leave them out")
    # Stores without directories refuse such ids too, so that a run can move to any store.
    if ("/" in value or "\\" in value or value == "..") and _escapes_directory(value):
        raise WorkflowCheckpointException(
            f"the {kind} {value!r}, read as a path, leads out of a storage's directory; choose one that is not a path"
        )


require_run_id = functools.partial(_require_id, "run id", RUN_ID_LENGTH_MAX)
"""Refuse a string that can't be the id of a run."""

require_checkpoint_id = functools.partial(_require_id, "checkpoint id", CHECKPOINT_ID_LENGTH_MAX)
"""Refuse a string that can't be the id of a checkpoint."""

require_tenant = functools.partial(_require_id, "name of a tenant", RUN_ID_LENGTH_MAX)
"""Refuse a string that can't be the name of a tenant."""


def _escapes_directory(value: str) -> bool:
    path = posixpath.normpath(posixpath.join("/inside", value.replace("\\", "/")))
    return path != "/inside" and not path.startswith("/inside/")


@functools.lru_cache(maxsize=1024)
def file_name(value: str) -> str:
    """Return a file name that no other value has; the value itself where possible."""
    name = quote(value, safe=_SAFE_IN_FILE_NAMES, errors="surrogatepass").replace("~", "%7E")
    if name.startswith("."):
        name = "%2E" + name[1:]
    if len(name) <= _FILE_NAME_LENGTH_MAX:
        return name
    # Only shortened names contain "~", so they never equal a name that is not shortened.
    whole = hashlib.blake2b(value.encode("utf-8", "surrogatepass"), digest_size=20).hexdigest()
    return f"{name[:_FILE_NAME_PREFIX_LENGTH]}~{whole}"
