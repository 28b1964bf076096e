-- Listings: the runs that were updated last come first without reading the others.

CREATE INDEX runs_by_update ON runs (tenant, coalesce(moment, 0), began);
