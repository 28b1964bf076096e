"""Values as bytes and back, restricted to types that the program trusts."""

from perdure.codec.codec import (
    DEFAULT_SIZE_LIMITS,
    NO_SIZE_LIMITS,
    Codec,
    CodedValues,
    Held,
    Kept,
    LiveValues,
    SizeLimits,
    Values,
    as_kept,
    decode,
    plain_data,
)
from perdure.codec.encoded import (
    INLINE_LENGTH_MAX,
    Encoded,
    document,
    dumps,
    loads,
    read_document,
    references,
    verified,
)
from perdure.codec.errors import DamagedPartError
from perdure.codec.objects import DataclassKind
from perdure.codec.trust import Trust, reachable, register_form, register_type, stored_name

__all__ = [
    "DEFAULT_SIZE_LIMITS",
    "INLINE_LENGTH_MAX",
    "NO_SIZE_LIMITS",
    "Codec",
    "CodedValues",
    "DamagedPartError",
    "DataclassKind",
    "Encoded",
    "Held",
    "Kept",
    "LiveValues",
    "SizeLimits",
    "Trust",
    "Values",
    "as_kept",
    "decode",
    "document",
    "dumps",
    "loads",
    "plain_data",
    "reachable",
    "read_document",
    "references",
    "register_form",
    "register_type",
    "stored_name",
    "verified",
]
