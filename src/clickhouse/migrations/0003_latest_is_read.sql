-- The latest values are small, rewritten all the time, and somebody waits for each read. LZ4 in compact parts, by
-- measurement beside ZSTD in wide ones: 1.9 instead of 3.4 us of CPU for a row written and merged; 5.3 instead of 7.9 ms
-- for a read of one device from three parts, from a single one the same; 21 bytes a series on the disk instead of 13.
ALTER TABLE {database}.latest{local} {on_cluster}
    MODIFY COLUMN device CODEC(LZ4),
    MODIFY COLUMN ts CODEC(LZ4),
    MODIFY COLUMN kind CODEC(LZ4),
    MODIFY COLUMN num CODEC(LZ4),
    MODIFY COLUMN int CODEC(LZ4),
    MODIFY COLUMN text CODEC(LZ4),
    MODIFY COLUMN version CODEC(LZ4),
    MODIFY COLUMN rank CODEC(LZ4);

ALTER TABLE {database}.latest{local} {on_cluster} MODIFY SETTING min_bytes_for_wide_part = 1099511627776;
