"""Values that a program had pickled can be read after the classes of perdure in them have moved."""

from __future__ import annotations

import base64
import json
from pathlib import Path

from make_pickles import Box, golden_box

from perdure.codec import Codec, Trust


def test_the_pickle_of_the_golden_file_is_read() -> None:
    golden = json.loads((Path(__file__).parent / "pickle-2.json").read_text("utf-8"))
    parts = {address: base64.b64decode(data) for address, data in golden["parts"].items()}
    box = Codec(Trust.of(), allow_pickle=True).decode(golden["text"].encode(), parts, path="golden")
    assert isinstance(box, Box)
    assert repr(box.things) == repr(golden_box().things)
