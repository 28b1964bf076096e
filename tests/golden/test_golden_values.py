"""Values that an earlier way of writing has cut into parts can be read for ever."""

from __future__ import annotations

import base64
import json
from pathlib import Path

from make_values import golden_value

from perdure.codec import Codec, Trust


def test_the_values_of_the_golden_file_are_read() -> None:
    golden = json.loads((Path(__file__).parent / "values-2.json").read_text("utf-8"))
    parts = {address: base64.b64decode(data) for address, data in golden["parts"].items()}
    assert Codec(Trust.of()).decode(golden["text"].encode(), parts, path="golden") == golden_value()
