-- Points at server time are points of their own: two columns behind `ts` in the sorting key tell those of one
-- millisecond apart and keep them in the order of sending (telemetry/block.ts). Both are 0 where the message brought
-- its `ts`. Only metadata changes: rows that exist, and rows of a Millrace that does not know the columns, read as 0.
-- Bytes a row by measurement: 0 where they are 0, else 0.5 and 0.4.
--
-- compatible from: 4
ALTER TABLE {database}.telemetry{local} {on_cluster}
    ADD COLUMN IF NOT EXISTS seq UInt32 CODEC(T64('bit'), ZSTD) AFTER ts,
    -- `version` of a point at server time: another one for each frame.
    ADD COLUMN IF NOT EXISTS origin UInt64 CODEC(T64('bit'), ZSTD) AFTER seq,
    MODIFY ORDER BY (device, key, ts, seq, origin);

-- The rank orders by ts, then by seq, then by version. Its lower 64 bits are the version where seq is 0, as before; no
-- such version reaches the highest 2^57 numbers, which are for seq (32 bits) and the end of the version (25 bits).
ALTER TABLE {database}.latest{local} {on_cluster}
    ADD COLUMN IF NOT EXISTS seq UInt32 CODEC(LZ4) AFTER ts,
    MODIFY COLUMN rank UInt128 MATERIALIZED
        bitShiftLeft(toUInt128(toInt128(ts) + 9223372036854775808), 64)
        + if(seq = 0, version, bitOr(bitOr(bitShiftLeft(toUInt64(seq), 25), bitAnd(version, 33554431)), 18302628885633695744))
        CODEC(LZ4);

{cluster_only}
ALTER TABLE {database}.telemetry {on_cluster}
    ADD COLUMN IF NOT EXISTS seq UInt32 AFTER ts,
    ADD COLUMN IF NOT EXISTS origin UInt64 AFTER seq;

{cluster_only}
ALTER TABLE {database}.latest {on_cluster} ADD COLUMN IF NOT EXISTS seq UInt32 AFTER ts;
