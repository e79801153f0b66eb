-- A profile answers for certificates of an issuer when its tenant has proven that it holds the key of that issuer: 2. It
-- also does, as long as no other tenant's profile answers for the same certificate, when it is older than this rule: 1.

alter table device_profile
  -- Digest of the name of the issuer, as certificates that it signed carry it; null = not looked at yet.
  add column issuer_subject text,
  add column issuer_state smallint not null default 0,
  -- What the key of the issuer has to sign.
  add column issuer_nonce text;

update device_profile
   set issuer_state = 1, issuer_nonce = replace(gen_random_uuid()::text || gen_random_uuid()::text, '-', '')
 where provision_type = 'X509_CERTIFICATE_CHAIN' and provision_device_key is not null;

-- A tenant that merely saves the certificate of another one's issuer keeps nobody from saving it as well.
alter table device_profile drop constraint device_profile_provision_key_unique;
create unique index device_profile_provision_key_unique on device_profile (provision_device_key)
  where provision_type <> 'X509_CERTIFICATE_CHAIN';
create unique index device_profile_issuer_of_tenant_unique on device_profile (tenant_id, provision_device_key)
  where provision_type = 'X509_CERTIFICATE_CHAIN';
create unique index device_profile_issuer_proven_unique on device_profile (provision_device_key)
  where provision_type = 'X509_CERTIFICATE_CHAIN' and issuer_state = 2;
create index device_profile_by_issuer on device_profile (issuer_subject) where issuer_state > 0;
