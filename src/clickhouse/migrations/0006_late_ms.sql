-- Milliseconds from the time of a point to its arrival: arrival = ts + late_ms. Only metadata changes: the value is
-- computed from `version` (see migration 1), whose upper bits are arrival - ts, so every existing point has it, too.
--
-- compatible from: 4
ALTER TABLE {database}.telemetry{local} {on_cluster}
    ADD COLUMN IF NOT EXISTS late_ms Int64 ALIAS toInt64(bitShiftRight(version, 20)) - 8796093022208;

{cluster_only}
ALTER TABLE {database}.telemetry {on_cluster}
    ADD COLUMN IF NOT EXISTS late_ms Int64 ALIAS toInt64(bitShiftRight(version, 20)) - 8796093022208;
