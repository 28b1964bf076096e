-- Listings: what a run is, how far it has come, and the tags under which it is found. Processes of an earlier release go
-- on: they leave these columns as they are, and `described_at` then differs from the position.

ALTER TABLE runs ADD COLUMN parent_run_id TEXT;

ALTER TABLE runs ADD COLUMN tags TEXT;  -- a JSON object of strings

ALTER TABLE runs ADD COLUMN version INTEGER;  -- of the workflow that made the newest commit

ALTER TABLE runs ADD COLUMN supersteps INTEGER NOT NULL DEFAULT 0;

ALTER TABLE runs ADD COLUMN spent TEXT;  -- a JSON object of numbers

ALTER TABLE runs ADD COLUMN requests INTEGER;  -- the number of open requests; null if unknown

ALTER TABLE runs ADD COLUMN described_at INTEGER;  -- the position of the commit that wrote these columns

ALTER TABLE runs ADD COLUMN facts_checksum TEXT;  -- over these columns; null until they are written

UPDATE runs SET requests = 0, described_at = position WHERE settled = 1;

CREATE INDEX runs_with_requests ON runs (tenant, began)
WHERE settled = 0 AND (requests IS NULL OR requests > 0 OR described_at IS NOT position);

CREATE INDEX runs_of_parent ON runs (tenant, parent_run_id, began) WHERE parent_run_id IS NOT NULL;

CREATE TABLE run_tags (
    tenant TEXT NOT NULL,
    name TEXT NOT NULL,
    value TEXT NOT NULL,
    run_id TEXT NOT NULL,
    PRIMARY KEY (tenant, name, value, run_id),
    FOREIGN KEY (tenant, run_id) REFERENCES runs (tenant, run_id) ON DELETE CASCADE
) WITHOUT ROWID;

CREATE INDEX run_tags_of_run ON run_tags (tenant, run_id);
