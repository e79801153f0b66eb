-- Users may relate entities of any type: each that is deleted takes its relations with it.
create trigger user_relations after delete on user_account for each row execute function forget_relations();
create trigger profile_relations after delete on device_profile for each row execute function forget_relations();
create trigger tenant_relations after delete on tenant for each row execute function forget_relations();
