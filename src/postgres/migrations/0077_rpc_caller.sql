-- The customer of the user who sent a command; null: the command of a tenant administrator, or of the server.
alter table rpc add column caller_customer uuid;
