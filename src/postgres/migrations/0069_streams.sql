-- The replicated streams of `INGEST_ACK=stream`, and how far each is known to be stored in ClickHouse. A stream that was made at
-- another time, or that has lost messages after `floor`, is damage. `writer`: its row in `journals`, for which deletes wait.
create table streams (
  name text primary key,
  writer int not null,
  created text not null,
  floor bigint not null,
  last bigint not null
);
