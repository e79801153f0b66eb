-- Keys whose latest values a delete replaces, from before the first of these values is deleted until the delete has
-- ended. The next call of a delete that was cut off makes the values that are missing.
create table tombstone_rewrites (
  tombstone bigint not null,
  keys text[] not null
);
create index tombstone_rewrites_by_tombstone on tombstone_rewrites (tombstone);
