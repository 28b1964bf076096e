-- What stands in a checkpoint itself and is no part: a JSON object by path.

ALTER TABLE checkpoints ADD COLUMN pieces BLOB;
