-- When a point that was written with a time to live expires, in seconds since 1970; 0 = not by itself. Reads leave
-- expired points out, and `erase/expired-points.ts` deletes them. Only metadata changes, and a Millrace that does not
-- know the column shows such points until they are deleted.
--
-- compatible from: 4
ALTER TABLE {database}.telemetry{local} {on_cluster} ADD COLUMN IF NOT EXISTS expires UInt32 CODEC(ZSTD);

{cluster_only}
ALTER TABLE {database}.telemetry {on_cluster} ADD COLUMN IF NOT EXISTS expires UInt32;
