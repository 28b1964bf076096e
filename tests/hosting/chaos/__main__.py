"""The command: a storm over one store, told as a table. It ends with 1, and names the seed, if anything went wrong.

python -m tests.hosting.chaos --store sqlite --hosts 2,3 --runs 200 --seconds 60 --seed 7
"""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import sys
import tempfile
import traceback
from pathlib import Path

from tests.hosting.chaos.place import Place
from tests.hosting.chaos.storm import Storm, Weather
from tests.postgres_server import binaries, shared_server

LEASE_SECONDS = 1.5


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.hosting.chaos", description=__doc__)
    parser.add_argument("--store", choices=["sqlite", "postgres"], default="sqlite")
    parser.add_argument("--hosts", default="2,3", help="how many there are, in one part of the storm after the other")
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--seconds", type=int, default=60, help="one strike for each of them, if the machine is idle")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--lease", type=float, default=LEASE_SECONDS, metavar="SECONDS")
    given = parser.parse_args()
    if given.store == "postgres" and binaries() is None:
        sys.stdout.write("postgres is left out: no wheel with a server is installed for this Python\n")
        return 0
    seed = random.randrange(1_000_000) if given.seed is None else given.seed
    weather = Weather(tuple(map(int, given.hosts.split(","))), given.runs, given.seconds, seed)
    directory = Path(tempfile.mkdtemp(prefix="chaos-"))
    if given.store == "postgres":
        place = Place.on_postgres(shared_server(), directory, lease_seconds=given.lease)
    else:
        place = Place.on_sqlite(directory, lease_seconds=given.lease)
    return _told(place, weather, given.store)


def _told(place: Place, weather: Weather, store: str) -> int:
    try:
        outcome = asyncio.run(Storm(place, weather).rage())
    except Exception:  # noqa: BLE001 - whatever it is, the seed is told
        traceback.print_exc()
        is_well = False
    else:
        sys.stdout.write(f"{outcome.table()}\n")
        is_well = not outcome.violations
    if is_well:
        shutil.rmtree(place.directory)
    verdict = "all is well" if is_well else f"NOT WELL; what was left is in {place.directory}"
    sys.stdout.write(f"{store}, seed {weather.seed}: {verdict}\n")
    return 0 if is_well else 1


if __name__ == "__main__":
    sys.exit(main())
