-- Listings: what a run is, how far it has come, and the tags under which it is found. Processes of an earlier release go
-- on: they leave these columns as they are, and `described_at` then differs from the position.

ALTER TABLE runs
    ADD COLUMN parent_run_id TEXT COLLATE "C",
    ADD COLUMN tags TEXT COLLATE "C",               -- a JSON object of strings
    ADD COLUMN version BIGINT,                      -- of the workflow that made the newest commit
    ADD COLUMN supersteps BIGINT NOT NULL DEFAULT 0,
    ADD COLUMN spent TEXT COLLATE "C",              -- a JSON object of numbers
    ADD COLUMN requests BIGINT,                     -- the number of open requests; null if unknown
    ADD COLUMN described_at BIGINT,                 -- the position of the commit that wrote these columns
    ADD COLUMN facts_checksum TEXT COLLATE "C";     -- over these columns; null until they are written

UPDATE runs SET requests = 0, described_at = position WHERE settled;

CREATE INDEX runs_with_requests ON runs (tenant, began)
WHERE NOT settled AND (requests IS NULL OR requests > 0 OR described_at IS DISTINCT FROM position);

CREATE INDEX runs_of_parent ON runs (tenant, parent_run_id, began) WHERE parent_run_id IS NOT NULL;

CREATE TABLE run_tags (
    tenant TEXT COLLATE "C" NOT NULL,
    name TEXT COLLATE "C" NOT NULL,
    value TEXT COLLATE "C" NOT NULL,
    run_id TEXT COLLATE "C" NOT NULL,
    PRIMARY KEY (tenant, name, value, run_id),
    FOREIGN KEY (tenant, run_id) REFERENCES runs (tenant, run_id) ON DELETE CASCADE
);

CREATE INDEX run_tags_of_run ON run_tags (tenant, run_id);
