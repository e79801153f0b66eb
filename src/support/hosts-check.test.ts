/** What the doctor says of other hosts. test/long/hosts.test.ts runs the command beside hosts. */
import { expect, test } from 'vitest';
import { loadConfig } from '../base/settings/config.ts';
import { ownVersion } from '../base/version.ts';
import { equalSettingsOf } from '../instance/membership/equal-settings.ts';
import type { FleetHost } from '../instance/membership/host-store.ts';
import { judgeHosts } from './hosts-check.ts';
import { connectionsBeyond } from './store-check.ts';

const config = loadConfig({});
const other = (name: string, more: Partial<FleetHost> = {}): FleetHost => ({
  id: name,
  name,
  address: '10.0.0.2:8080',
  zone: '',
  workers: 2,
  version: ownVersion(),
  settings: equalSettingsOf(config),
  epoch: 1,
  schemaVersion: 1,
  startedMs: 0,
  heartbeatMs: 0,
  mqttConnections: 0,
  ageMs: 100,
  ...more,
});

test('hosts that agree are one line', () => {
  expect(judgeHosts([other('b'), other('c')], config)).toEqual([
    { subject: 'hosts', level: 'ok', says: '2 other hosts of this installation, with equal settings (npm run hosts).' },
  ]);
});

test('a silent host, another setting and another version are named', () => {
  const settings = { ...equalSettingsOf(config), INGEST_ACK: 'memory' };
  const found = judgeHosts(
    [other('b', { ageMs: 42_000 }), other('c', { settings }), other('d', { version: '9' })],
    config,
  );
  expect(found.map(({ level }) => level)).toEqual(['warning', 'fault', 'warning']);
  expect(found[0]!.says).toMatch(
    /^b \(10\.0\.0\.2:8080\) has sent no heartbeat for 42 s: start it again on its DATA_DIR/,
  );
  expect(found[1]!.says).toMatch(/^INGEST_ACK is journal here and memory on the host c /);
  expect(found[2]!.says).toContain(': d 9.');
});

test('the connections of all hosts count, and only when they exceed those of the server', () => {
  expect(connectionsBeyond(96, config, [4, 4])).toBeUndefined();
  expect(connectionsBeyond(95, config, [4, 4])).toMatch(
    /^takes 95 connections of all its clients, and 2 hosts open up to 96, this one 48: raise max_connections/,
  );
  expect(connectionsBeyond(10, config, [4])).toContain('and this host opens up to 48: ');
});
