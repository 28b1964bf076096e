"""Makes the golden file of values that are cut into parts. It is made once for each way of writing, and never edited.

python tests/golden/make_values.py tests/golden/values-2.json
"""

from __future__ import annotations

import base64
import json
import sys
from pathlib import Path
from typing import Any

from perdure import Log
from perdure.codec import Codec, Trust


def golden_value() -> dict[str, Any]:
    """Something of every way in which a value is cut."""
    lines = [f"line {number} " + "x" * (number % 5 * 150) for number in range(90)]
    return {
        "empty": Log(),
        "short": Log(["a", 1, None]),
        "log": Log(lines),
        "logs": Log(Log(lines[:count]) for count in range(0, 40, 9)),
        "mutable": Log({"number": number, "tags": ["a", "b"]} for number in range(280)),
        "list": lines,
        "tuple": tuple(lines),
        "dict": {f"key {number}": line for number, line in enumerate(lines)},
        "bytes": [b"\x00\xff" * 700, b'"~"' * 700],
        "text": "ä" * 600,
    }


def main(target: Path) -> None:
    """Write the text and the parts."""
    encoded = Codec(Trust.of()).encode(golden_value(), path="golden")
    parts = {part.hash: base64.b64encode(part.data).decode() for part in encoded.blobs}
    content = {"text": encoded.text.decode(), "parts": dict(sorted(parts.items()))}
    target.write_text(json.dumps(content, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
