"""Values as bytes and back, restricted to types that the program trusts."""

from perdure.codec.codec import Codec, DamagedPartError, Encoded, references
from perdure.codec.documents import (
    Needs,
    array,
    document,
    dumps,
    loads,
    piece,
    plain,
    quoted,
    quoted_all,
    quoted_or_null,
    verified,
    with_parts,
)
from perdure.codec.forms import Form, form_of, register_form
from perdure.codec.plain_data import plain_data
from perdure.codec.records import DataclassKind
from perdure.codec.size_limits import DEFAULT_SIZE_LIMITS, NO_SIZE_LIMITS, Scale, SizeLimits, WeighingCodec
from perdure.codec.trust import Trust, register_type, stored_name
from perdure.codec.trust_reach import is_enum, is_model, is_named_tuple
from perdure.codec.values import CodedValues, Held, Kept, LiveValues, Values, as_kept, decode
from perdure.codec.write import part_reference, to_bytes

__all__ = [
    "DEFAULT_SIZE_LIMITS",
    "NO_SIZE_LIMITS",
    "Codec",
    "CodedValues",
    "DamagedPartError",
    "DataclassKind",
    "Encoded",
    "Form",
    "Held",
    "Kept",
    "LiveValues",
    "Needs",
    "Scale",
    "SizeLimits",
    "Trust",
    "Values",
    "WeighingCodec",
    "array",
    "as_kept",
    "decode",
    "document",
    "dumps",
    "form_of",
    "is_enum",
    "is_model",
    "is_named_tuple",
    "loads",
    "part_reference",
    "piece",
    "plain",
    "plain_data",
    "quoted",
    "quoted_all",
    "quoted_or_null",
    "references",
    "register_form",
    "register_type",
    "stored_name",
    "to_bytes",
    "verified",
    "with_parts",
]
