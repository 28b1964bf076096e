"""Make the golden file of a pickled value: `python tests/golden/make_pickles.py tests/golden/pickle-2.json`.

Programs may allow pickle for objects that nothing else takes. Such an object may hold classes of perdure, which a
pickle knows by the module that they were in.
"""

from __future__ import annotations

import base64
import json
import sys
from pathlib import Path
from typing import Any

from perdure import Content, KeepLast, Log, Message, Retry, WorkflowRunState
from perdure.codec import Codec, Trust


class Box:
    """An object that only pickle takes."""

    def __init__(self, things: list[Any]) -> None:
        self.things = things


def golden_box() -> Box:
    """Hold one of each kind: registered classes, data classes, an enum, a log, a class itself."""
    call = Content.from_function_call("c", "look", arguments={"where": "hall"})
    message = Message("user", ["hello", call], author_name="ada")
    return Box([message, KeepLast(3), Retry(2), WorkflowRunState.IDLE, Log(["a", 1]), Message])


def main(target: Path) -> None:
    """Write the text and the parts."""
    encoded = Codec(Trust.of(), allow_pickle=True).encode(golden_box(), path="golden")
    parts = {part.hash: base64.b64encode(part.data).decode() for part in encoded.blobs}
    content = {"text": encoded.text.decode(), "parts": dict(sorted(parts.items()))}
    target.write_text(json.dumps(content, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    # A pickle names the module of a class: under this name the test finds it.
    from make_pickles import main as make

    make(Path(sys.argv[1]))
