"""Values as bytes and back, restricted to types that the program trusts."""
# pyright: reportUnusedImport=false

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
    form_codec,
    plain_data,
    stored_tree,
)
from perdure.codec.encoded import (
    INLINE_LENGTH_MAX,
    Encoded,
    document,
    dumps,
    every_reference,
    loads,
    read_document,
    references,
    verified,
)
from perdure.codec.errors import MALFORMED, DamagedPartError
from perdure.codec.objects import DataclassKind
from perdure.codec.trust import Trust, reachable, register_checkpoint_type, register_form, register_type, stored_name
