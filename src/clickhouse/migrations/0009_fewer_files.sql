-- A part of up to 4 GiB of rows is one file, not one for each column: a read of one device opens a file of each part.
-- By measurement, CPU of a day of 1 000 points in twelve parts: 20.0 instead of 24.9 ms; inserts, merges and reports
-- the same; 2.6 % more bytes. A closed day of a large fleet is one larger part, and has a file for each column.
--
-- compatible from: 4
ALTER TABLE {database}.telemetry{local} {on_cluster} MODIFY SETTING min_bytes_for_wide_part = 4294967296;
