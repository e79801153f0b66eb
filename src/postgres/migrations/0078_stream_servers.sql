-- Where each stream is, and whether it may hold frames after its position: after a change of the settings, an operator
-- is told of streams that no host reads any more.
alter table streams
  -- STREAM_URL of the host that wrote the position last
  add column servers text not null default '',
  -- true: hosts publish to the stream (INGEST_ACK=stream), so frames may have come after the position
  add column accepting boolean not null default true;
