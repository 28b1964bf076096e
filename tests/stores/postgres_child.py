"""A process that does to a PostgreSQL store what it is told: a JSON order per line in, a JSON answer per line out."""

from __future__ import annotations

import json
import sys

from child import Program, answer, say

from perdure.storage import PostgresStore


class PostgresProgram(Program):
    def __init__(self, dsn: str, schema: str, lease_seconds: float) -> None:
        self.store = PostgresStore(dsn, schema=schema, lease_seconds=lease_seconds)
        self.runs = {}


def main() -> None:
    program = PostgresProgram(sys.argv[1], sys.argv[2], float(sys.argv[3]))
    say("ready")
    for line in sys.stdin:
        say(answer(program, json.loads(line)))


if __name__ == "__main__":
    main()
