import { describe, expect, it } from 'vitest';
import { deviceRow } from '../../test/harness/device-row.ts';
import { steadySleep, useSteadyClock } from '../../test/harness/steady-clock.ts';
import { unavailable } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import { createLog } from '../base/log.ts';
import type { FoundLogin } from './known/known-devices.ts';
import { type Login, Logins, type LoginsWithoutStore } from './logins.ts';
import { mqttBasicCredentials, type NewCredentials, tokenCredentials } from './model/credentials.ts';
import type { LoginRow } from './sql/look-up-store.ts';

useSteadyClock();

const log = createLog('fatal' as 'error', 'test');

function row(number: number, { type, credentialsId, value }: NewCredentials, more: Partial<LoginRow> = {}): LoginRow {
  return {
    ...deviceRow(number),
    credentialsVersion: 1,
    credentialsId,
    type,
    value,
    isGateway: false,
    transportType: 'DEFAULT',
    profileVersion: 1,
    ...more,
  };
}

const basic = (clientId: string | null, userName: string | null, password: string | null = null) =>
  mqttBasicCredentials({ clientId, userName, password });

function setUp(rows: LoginRow[], withoutStore?: LoginsWithoutStore) {
  const batches: string[][] = [];
  const profileReads: string[][] = [];
  const state = { rows, isAway: false, hold: undefined as Promise<void> | undefined, waitedMs: 0 };
  const logins = new Logins({
    lookUp: async (ids) => {
      batches.push(ids);
      await state.hold;
      if (state.isAway) throw unavailable('postgres_away', 'away');
      return state.rows.filter(({ credentialsId }) => ids.includes(credentialsId));
    },
    lookUpProfiles: async (ids) => {
      profileReads.push(ids);
      return ids.map((id) => ({
        id,
        version: 1,
        transportType: 'MQTT' as const,
        transport: { type: 'MQTT', deviceTelemetryTopic: 'own/+/telemetry', deviceAttributesTopic: 'bad/#/filter' },
      }));
    },
    clock: { now: () => Date.now(), monotonic: () => performance.now() + state.waitedMs },
    log,
    ...(withoutStore && { withoutStore }),
  });
  const names = (clientId: string, userName = '', password?: string) =>
    logins.find({
      kind: 'names',
      clientId,
      userName,
      password: password === undefined ? undefined : Buffer.from(password),
    });
  return { logins, names, batches, profileReads, state };
}

const outcomeOf = (login: Login) => (login.kind === 'accepted' ? login.login.device.number : login.refusal);

describe('Logins', () => {
  it('takes a token with any client id and any password', async () => {
    const { names } = setUp([row(1, tokenCredentials('token'))]);
    expect(outcomeOf(await names('', 'token'))).toBe(1);
    expect(outcomeOf(await names('anything', 'token', 'anything'))).toBe(1);
    expect(outcomeOf(await names('', 'Token'))).toBe('credentials');
  });

  it('takes the record of client id and user name before that of the user name alone', async () => {
    const { names } = setUp([row(1, basic('c', 'u', 'both')), row(2, basic(null, 'u', 'alone'))]);
    expect(outcomeOf(await names('c', 'u', 'both'))).toBe(1);
    expect(outcomeOf(await names('c', 'u', 'alone'))).toBe('credentials');
    expect(outcomeOf(await names('other', 'u', 'alone'))).toBe(2);
    expect(outcomeOf(await names('other', 'u', 'both'))).toBe('credentials');
    expect(outcomeOf(await names('other', 'u'))).toBe('credentials');
  });

  it('compares the password only where one is stored', async () => {
    const { names } = setUp([row(1, basic('c', 'u')), row(2, basic('alone', null))]);
    expect(outcomeOf(await names('c', 'u', 'anything'))).toBe(1);
    expect(outcomeOf(await names('alone'))).toBe(2);
    expect(outcomeOf(await names('alone', '', 'anything'))).toBe(2);
  });

  it('names the fault of the given credentials', async () => {
    const { names } = setUp([]);
    expect(outcomeOf(await names('', 'u'))).toBe('credentials');
    expect(outcomeOf(await names('c', 'u', 'p'))).toBe('credentials');
    expect(outcomeOf(await names('c', '', 'p'))).toBe('credentials');
    expect(outcomeOf(await names('c'))).toBe('client_id');
    expect(outcomeOf(await names(''))).toBe('not_authorized');
  });

  it('gathers logins after a query for several, and makes a single login wait for nothing', async () => {
    const { names, batches } = setUp([]);
    await names('', 'alone');
    const turns = (count: number): Promise<void> =>
      count === 0 ? Promise.resolve() : new Promise((resolve) => setImmediate(() => resolve(turns(count - 1))));
    const single = names('', 'next');
    await turns(2);
    expect(batches).toEqual([['alone'], ['next']]);
    await single;

    await Promise.all([names('', 'a'), names('', 'b')]);
    const begun = performance.now();
    const third = names('', 'c');
    await turns(3);
    const fourth = names('', 'd');
    await Promise.all([third, fourth]);
    expect(batches.slice(2)).toEqual([
      ['a', 'b'],
      ['c', 'd'],
    ]);
    expect(performance.now() - begun).toBeGreaterThan(limits.loginGatherMs / 2);
  });

  it('asks for nothing while each turn of the loop brings a login of a storm, but not for longer than a moment', async () => {
    const { names, batches } = setUp([]);
    const begun = performance.now();
    await Promise.all([names('', 'a'), names('', 'b')]);
    const logins: Promise<Login>[] = [];
    // A fast machine has more turns in that time than logins may wait.
    while (batches.length === 1 && logins.length < limits.loginQueueMax) {
      logins.push(names('', `token-${logins.length}`));
      await new Promise((resolve) => setImmediate(resolve));
    }
    const hasWaited = performance.now() - begun >= limits.loginGatherMsMax;
    expect(hasWaited || logins.length === limits.loginQueueMax).toBe(true);
    await Promise.all(logins);
  });

  it('asks for each login that has waited for others, however long, unless its client no longer waits', async () => {
    const rows = Array.from({ length: limits.loginBatchMax + 2 }, (_, i) => row(i, tokenCredentials(`token-${i}`)));
    const { logins, batches, state } = setUp(rows);
    state.hold = steadySleep(20);
    const find = (i: number, isAbandoned?: () => boolean) =>
      logins.find({ kind: 'names', clientId: '', userName: `token-${i}`, password: undefined }, isAbandoned);
    const first = Array.from({ length: limits.loginBatchMax }, (_, i) => find(i));
    let isGone = false;
    const patient = find(limits.loginBatchMax);
    const impatient = find(limits.loginBatchMax + 1, () => isGone);
    await Promise.all(first);
    isGone = true;
    state.waitedMs = limits.loginLookupTimeoutMs;
    state.hold = steadySleep(100);
    expect(outcomeOf(await patient)).toBe(limits.loginBatchMax);
    expect(outcomeOf(await impatient)).toBe('unavailable');
    expect(batches.slice(1)).toEqual([[`token-${limits.loginBatchMax}`]]);
  });

  it('never takes a digest for a name', async () => {
    const certificate = { type: 'X509_CERTIFICATE' as const, credentialsId: 'digest', value: 'pem' };
    const both = basic('c', 'u', 'p');
    const { names, logins } = setUp([row(1, certificate), row(2, both)]);
    expect(outcomeOf(await names('', 'digest'))).toBe('credentials');
    expect(outcomeOf(await names('', both.credentialsId, 'p'))).toBe('credentials');
    expect(outcomeOf(await logins.find({ kind: 'certificate', credentialsId: 'digest' }))).toBe(1);
    expect(outcomeOf(await logins.find({ kind: 'certificate', credentialsId: both.credentialsId }))).toBe(
      'certificate',
    );
  });

  it('refuses a device whose profile has another transport', async () => {
    const { names } = setUp([
      row(1, tokenCredentials('coap'), { transportType: 'COAP' }),
      row(2, tokenCredentials('mqtt'), { transportType: 'MQTT' }),
    ]);
    expect(outcomeOf(await names('', 'coap'))).toBe('transport');
    expect(outcomeOf(await names('', 'mqtt'))).toBe(2);
  });

  it('asks once for all CONNECTs of a turn and for those that come while a query runs, in batches', async () => {
    const rows = Array.from({ length: 3 * limits.loginBatchMax }, (_, i) => row(i, tokenCredentials(`token-${i}`)));
    const { names, batches } = setUp(rows);
    const answers = await Promise.all(rows.map(({ credentialsId }) => names('', credentialsId)));
    expect(answers.map(outcomeOf)).toEqual(rows.map(({ number }) => number));
    expect(batches.map((batch) => batch.length)).toEqual(Array.from({ length: 3 }, () => limits.loginBatchMax));
  });

  it('never asks the store for a text that it cannot take', async () => {
    const { names, batches } = setUp([]);
    expect(outcomeOf(await names('', 'a\0b'))).toBe('credentials');
    expect(outcomeOf(await names('', 'x'.repeat(limits.tokenCharsMax + 1)))).toBe('credentials');
    expect(batches).toEqual([]);
  });

  it('reads a profile once, and leaves out what is no topic', async () => {
    const { names, profileReads } = setUp([
      row(1, tokenCredentials('one'), { transportType: 'MQTT' }),
      row(2, tokenCredentials('two'), { transportType: 'MQTT' }),
    ]);
    const [one, two] = [await names('', 'one'), await names('', 'two')];
    expect(profileReads).toEqual([['p']]);
    if (one.kind !== 'accepted' || two.kind !== 'accepted') throw new Error('refused');
    expect(one.login.topics).toEqual({
      telemetry: 'own/+/telemetry',
      attributes: undefined,
      attributesSubscribe: undefined,
      acknowledgesInvalid: false,
    });
    expect(two.login.topics).toBe(one.login.topics);
  });

  it('while the store is unavailable accepts logins that were accepted before, with the right password, and no others', async () => {
    const { names, state } = setUp([row(1, tokenCredentials('token')), row(2, basic('c', 'u', 'right'))]);
    await names('', 'token');
    await names('c', 'u', 'right');
    state.isAway = true;
    expect(outcomeOf(await names('', 'token'))).toBe(1);
    expect(outcomeOf(await names('c', 'u', 'right'))).toBe(2);
    expect(outcomeOf(await names('c', 'u', 'wrong'))).toBe('unavailable');
    expect(outcomeOf(await names('', 'stranger'))).toBe('unavailable');
  });

  it('forgets changed credentials, also when an earlier query still runs', async () => {
    const { names, logins, state } = setUp([row(1, tokenCredentials('token'))]);
    const change = { credentialsId: 'token', deviceId: 'id-1', deviceNumber: 1, deleted: true };
    await names('', 'token');
    logins.changed(change);
    state.isAway = true;
    expect(outcomeOf(await names('', 'token'))).toBe('unavailable');
    state.isAway = false;
    let release = () => {};
    state.hold = new Promise((resolve) => {
      release = resolve;
    });
    const early = names('', 'token');
    await new Promise((resolve) => setImmediate(resolve));
    logins.changed(change);
    state.rows = [];
    release();
    expect(outcomeOf(await early)).toBe('credentials');
    state.isAway = true;
    expect(outcomeOf(await names('', 'token'))).toBe('unavailable');
  });

  it('remembers a new device whose first login met the message about its creation', async () => {
    const { names, logins, state, batches } = setUp([row(1, tokenCredentials('token'))]);
    let release = () => {};
    state.hold = new Promise((resolve) => {
      release = resolve;
    });
    const first = names('', 'token');
    await new Promise((resolve) => setImmediate(resolve));
    logins.changed({ credentialsId: 'token', deviceId: 'id-1', deviceNumber: 1, deleted: false });
    release();
    expect(outcomeOf(await first)).toBe(1);
    expect(batches).toHaveLength(2);
    state.isAway = true;
    expect(outcomeOf(await names('', 'token'))).toBe(1);
  });

  it('asks the file for a login that is forgotten while the file is read for another one', async () => {
    const asked: string[][] = [];
    const device = { type: 'ACCESS_TOKEN', transportType: 'DEFAULT', row: row(1, tokenCredentials('token')) };
    const withoutStore: LoginsWithoutStore = {
      isStoreUnavailable: false,
      storeFailed: () => {},
      logins: async (ids) => {
        asked.push(ids);
        if (asked.length === 1) logins.changed('all');
        const login = { device, topics: undefined, isNamed: () => false, isPassword: () => true };
        return new Map(ids.filter((id) => id === 'token').map((id) => [id, login as unknown as FoundLogin]));
      },
    };
    const { names, logins, state } = setUp([row(1, tokenCredentials('token'))], withoutStore);
    await names('', 'token');
    state.isAway = true;
    const answers = await Promise.all([names('', 'token'), names('', 'stranger')]);
    expect(answers.map(outcomeOf)).toEqual([1, 'unavailable']);
    expect(asked).toEqual([['stranger'], ['token']]);
  });

  it('bounds those that wait', async () => {
    const { names, logins, state } = setUp([]);
    let release = () => {};
    state.hold = new Promise((resolve) => {
      release = resolve;
    });
    const waiting = Array.from({ length: limits.loginQueueMax }, (_, i) => names('', `token-${i}`));
    expect(outcomeOf(await names('', 'one more'))).toBe('unavailable');
    release();
    await Promise.all(waiting);
    expect(logins.waiting).toBe(0);
  });
});
