"""Writers that were frozen in the middle of what they sent, and hold locks that others wait for.

The server ends by itself a transaction in which nobody says anything (`idle_in_transaction_session_timeout`), but only
between one answer and the next question. Who is frozen between two statements of a pipeline has asked half of a
question: for the server that is work under way, and it waits for the rest without end.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from perdure.storage.postgres.target import Connection, Target

logger = logging.getLogger(__name__)

_END_THE_SILENT = """
SELECT pid, pg_terminate_backend(pid) AS was_ended
FROM pg_stat_activity
WHERE datname = current_database()
  AND usename = current_user
  AND pid <> pg_backend_pid()
  AND wait_event = 'ClientRead'
  AND state_change < clock_timestamp() - make_interval(secs => %(seconds)s)
  AND pid IN (
    SELECT pid
    FROM pg_locks
    WHERE locktype = 'advisory'
      AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
      AND (classid::bigint << 32) | objid::bigint = %(writers)s
      AND objsubid = 1
      AND granted
  )
"""
"""All who write to a schema share a lock. `state_change` is the time of the last message that the server has read."""


def end_silent_writers(connection: Connection, target: Target) -> None:
    """End transactions of writers of the schema who have said nothing for as long as nobody may be silent in one.

    They lose nothing: what was not committed is undone, and who lives on finds the session lost and does it again.
    """
    values = {"seconds": target.silent_seconds, "writers": target.key("writers")}
    for row in connection.execute(_END_THE_SILENT, values).fetchall():
        if row["was_ended"]:
            logger.warning(
                "the session %s in the database %r held locks and was silent for more than %g seconds: it was ended",
                row["pid"],
                target.place,
                target.silent_seconds,
            )
