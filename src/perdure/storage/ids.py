"""What may be an id, and the file name that an id gets."""

from __future__ import annotations

import functools
import hashlib
import posixpath
import unicodedata
from urllib.parse import quote

from perdure.errors import WorkflowCheckpointException

RUN_ID_LENGTH_MAX = 200
CHECKPOINT_ID_LENGTH_MAX = 220
"""A run id with "@" and a number behind it."""

APART = "perdure:"
"""How the names of tenants begin that hold what is kept beside runs: conversations, definitions."""

_UNPRINTABLE = frozenset({"Cc", "Cs", "Zl", "Zp"})
_SAFE_IN_FILE_NAMES = "@+=,-_."
_FILE_NAME_LENGTH_MAX = 180
_FILE_NAME_PREFIX_LENGTH = 120


def require_run_id(value: str) -> None:
    """Refuse what can't be the id of a run."""
    _require("run id", value, RUN_ID_LENGTH_MAX)


def require_checkpoint_id(value: str) -> None:
    """Refuse what can't be the id of a checkpoint."""
    _require("checkpoint id", value, CHECKPOINT_ID_LENGTH_MAX)


def require_tenant(value: str) -> None:
    """Refuse what can't be the name of a tenant."""
    _require("name of a tenant", value, RUN_ID_LENGTH_MAX)


def _require(kind: str, value: str, length_max: int) -> None:
    if not value:
        raise WorkflowCheckpointException(f"a {kind} can't be empty; give one")
    if len(value) > length_max:
        raise WorkflowCheckpointException(
            f"the {kind} {value[:40]!r}... has {len(value)} characters, more than {length_max}; shorten it"
        )
    if not value.isprintable() and any(unicodedata.category(character) in _UNPRINTABLE for character in value):
        raise WorkflowCheckpointException(f"the {kind} {value!r} has control characters in it; leave them out")
    if _leads_out(value):
        raise WorkflowCheckpointException(
            f"the {kind} {value!r}, read as a path, leads out of a storage's directory; choose one that is not a path"
        )


def _leads_out(value: str) -> bool:
    """Whether an id is a way out of the directory that it would be kept in. Refused by stores without one, too."""
    if "/" not in value and "\\" not in value:
        return value == ".."
    path = posixpath.normpath(posixpath.join("/inside", value.replace("\\", "/")))
    return path != "/inside" and not path.startswith("/inside/")


@functools.lru_cache(maxsize=1024)
def file_name(value: str) -> str:
    """A name for a file, another one for every value, the value itself where that is possible."""
    name = quote(value, safe=_SAFE_IN_FILE_NAMES, errors="surrogatepass").replace("~", "%7E")
    if name.startswith("."):
        name = "%2E" + name[1:]
    if len(name) <= _FILE_NAME_LENGTH_MAX:
        return name
    # No other name has a "~" in it, so the shortened ones are a set of their own.
    whole = hashlib.blake2b(value.encode("utf-8", "surrogatepass"), digest_size=20).hexdigest()
    return f"{name[:_FILE_NAME_PREFIX_LENGTH]}~{whole}"
