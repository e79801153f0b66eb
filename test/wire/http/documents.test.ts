/**
 * The examples of docs/http.md and docs/rest.md run as they are written: the comment below a command is its status and
 * its body, in which `…` matches anything. The commands of one block share a device.
 */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { expect, inject, test } from 'vitest';
import type { Device } from '../../harness/api.ts';
import { newTenant, ok, type Person, systemAdminToken } from '../../harness/people.ts';
import { receiptOf } from '../../harness/receipts.ts';
import { sharedEngine } from '../../harness/shared-engine.ts';

interface Example {
  command: string;
  answer: string;
}

/** A block is commands, each followed by its answer. */
function blocksOf(page: string): Example[][] {
  const blocks = [...readFileSync(page, 'utf8').matchAll(/```sh\n(curl .*?)```/gs)].map(([, block]) => block!);
  return blocks.map((block) =>
    [...block.matchAll(/(.*?)^# (\d{3}.*?)\n/gms)].map(([, command, answer]) => ({
      command: command!.trim(),
      answer: answer!.trimEnd(),
    })),
  );
}

/** The values of the variables in the examples, from a tenant that no other test uses. */
class Reader {
  readonly #admin: Person;
  readonly #variables: Record<string, string>;

  constructor(admin: Person, variables: Record<string, string>) {
    this.#admin = admin;
    this.#variables = variables;
  }

  async run(block: Example[]): Promise<void> {
    const variables = { ...this.#variables, ...(await this.#variablesOf(block)) };
    const open: Promise<void>[] = [];
    for (const { command, answer } of block) {
      const isOpen = command.endsWith('&');
      const ended = this.#answers(isOpen ? command.slice(0, -1) : command, answer, variables);
      open.push(ended);
      // The failure of this block is reported with those of the others, below.
      if (isOpen) ended.catch(() => {});
      else await ended;
    }
    await Promise.all(open);
  }

  async #answers(command: string, answer: string, variables: Record<string, string>): Promise<void> {
    const { host, port } = sharedEngine().address;
    const line = command
      .replace('http://localhost:8080', `http://${host}:${port}`)
      .replace('http://localhost:8888', `http://${host}:${inject('engine').analyticsPort}`)
      .replace(/^curl /, "exec curl -sS -m 30 -w '\\n%{http_code}' ");
    const pattern = new RegExp(`^${answer.split('…').map(escaped).join('[^]*?')}$`);
    const isLater = /\/values\/timeseries|timeseries\/delete|entitiesQuery/.test(command);
    const ask = () => run(line, variables);
    // Points are acknowledged before they can be read, and a delete may be carried out later. A query of entities finds
    // the device of another block, which runs beside it.
    const given = isLater ? await settled(ask, (each) => pattern.test(each)) : await ask();
    expect(given, command).toMatch(pattern);
  }

  /** Makes the entities that a block deletes or changes, and returns the values of its variables. */
  async #variablesOf(block: Example[]): Promise<Record<string, string>> {
    const text = block.map(({ command }) => command).join('\n');
    const name = `device-${crypto.randomUUID()}`;
    const device = await this.#device(name);
    const variables: Record<string, string> = {
      NAME: name,
      DEVICE: device.id,
      TOKEN: device.token,
      NEW_TOKEN: `new-${crypto.randomUUID()}`,
    };
    if (text.includes('$RECEIPT')) variables['RECEIPT'] = await receiptOf(device.token);
    if (text.includes('$PACKAGE')) variables['PACKAGE'] = (await this.#package()).id;
    if (text.includes('$TITLE')) Object.assign(variables, await this.#assigned(device));
    if (text.includes('$NEW_USER')) {
      const email = `${variables['NEW_TOKEN']}@example.org`;
      const customerId = { entityType: 'CUSTOMER', id: variables['CUSTOMER'] ?? this.#variables['CUSTOMER'] };
      const path = '/api/user?sendActivationMail=false';
      variables['NEW_USER'] = (await this.#call(path, { email, authority: 'CUSTOMER_USER', customerId })).id.id;
    }
    if (text.includes('$VIEW')) {
      const { analyticsPort } = inject('engine');
      const path = `http://127.0.0.1:${analyticsPort}/apiAnalytics/view?jwt=${this.#admin.token}`;
      const field = (label: string, rest: object) => ({ label, ...rest });
      const fields = [
        field('Device', { source: 'ENTITY_FIELD', key: 'name', role: 'ROW' }),
        field('Day', { source: 'DATE', role: 'ROW', dateGrouping: 'FULL_DATE' }),
        field('mean', { source: 'TELEMETRY', key: 'temperature', role: 'VALUE', aggregation: 'AVG' }),
      ];
      const body = JSON.stringify({ name: 'A view', fields });
      const response = await fetch(path, { method: 'POST', headers: { 'content-type': 'application/json' }, body });
      variables['VIEW'] = ((await response.json()) as { id: string }).id;
    }
    return variables;
  }

  async #device(name: string): Promise<Device> {
    const { id } = await this.#call('/api/device', { name });
    const path = `/api/device/${id.id}/credentials`;
    const { credentialsId } = await ok('GET', path, undefined, this.#admin.token);
    return { id: id.id, token: credentialsId };
  }

  async #package(): Promise<{ id: string; title: string }> {
    const title = `fw-${crypto.randomUUID()}`;
    const { id } = await this.#call('/api/otaPackage', { type: 'FIRMWARE', title, version: '1' });
    return { id: id.id, title };
  }

  /** A package of ten bytes that the device has. */
  async #assigned({ id }: Device): Promise<Record<string, string>> {
    const { id: packageId, title } = await this.#package();
    const form = new FormData();
    form.set('file', new Blob(['0123456789']), 'fw.bin');
    const uploaded = await fetch(`${sharedEngine().http}/api/otaPackage/${packageId}?checksumAlgorithm=SHA256`, {
      method: 'POST',
      headers: { 'x-authorization': `Bearer ${this.#admin.token}` },
      body: form,
    });
    expect(uploaded.status, await uploaded.text()).toBe(200);
    const device = await ok('GET', `/api/device/${id}`, undefined, this.#admin.token);
    await this.#call('/api/device', { ...device, firmwareId: { entityType: 'OTA_PACKAGE', id: packageId } });
    return { TITLE: title, VERSION: '1' };
  }

  #call(path: string, body: object) {
    return ok('POST', path, body, this.#admin.token);
  }
}

/** Returns the status of a command, and its body if it has one. */
async function run(line: string, variables: Record<string, string>): Promise<string> {
  const child = spawn('sh', ['-c', line], { env: { ...process.env, ...variables } });
  let output = '';
  child.stdout.setEncoding('utf8').on('data', (text: string) => {
    output += text;
  });
  await once(child, 'close');
  const end = output.lastIndexOf('\n');
  const body = output.slice(0, end);
  return `${output.slice(end + 1)}${body === '' ? '' : ` ${body}`}`;
}

/** Returns the first answer that matches, or the last one within ten seconds. */
async function settled(ask: () => Promise<string>, isGood: (answer: string) => boolean): Promise<string> {
  const deadline = performance.now() + 10_000;
  for (;;) {
    const answer = await ask();
    if (isGood(answer) || performance.now() > deadline) return answer;
  }
}

function escaped(text: string): string {
  return text.replace(/[\\^$.*+?()[\]{}|]/g, '\\$&');
}

async function readerOf(): Promise<Reader> {
  const { id: tenant, admin } = await newTenant();
  const call = (path: string, body: object) => ok('POST', path, body, admin.token);
  const customerId = (await call('/api/customer', { title: 'A customer' })).id;
  const email = `user-${crypto.randomUUID()}@example.org`;
  const user = { email, authority: 'CUSTOMER_USER', customerId };
  const { id } = await call('/api/user?sendActivationMail=false', user);
  const link: string = await ok('GET', `/api/user/${id.id}/activationLink`, undefined, admin.token);
  const activateToken = link.slice(link.indexOf('=') + 1);
  const customerUser = await call('/api/noauth/activate', { activateToken, password: 'pear-tree-7' });
  const userId = { entityType: 'USER', id: admin.id };
  const key = await call('/api/apiKey', { userId, description: 'program', enabled: true, expirationTime: 0 });
  const pair = await sharedEngine().login(admin.email, admin.password);
  const provision = { type: 'ALLOW_CREATE_NEW_DEVICES', provisionDeviceSecret: 's3-pump' };
  const profile = await call('/api/deviceProfile', {
    name: 'A profile',
    type: 'DEFAULT',
    transportType: 'DEFAULT',
    provisionType: provision.type,
    provisionDeviceKey: `key-${crypto.randomUUID()}`,
    profileData: {
      configuration: { type: 'DEFAULT' },
      transportConfiguration: { type: 'DEFAULT' },
      provisionConfiguration: provision,
    },
  });
  return new Reader(admin, {
    TENANT: tenant,
    SYSTEM: await systemAdminToken(),
    USER: admin.id,
    EMAIL: admin.email,
    PASSWORD: admin.password,
    JWT: pair.token,
    REFRESH: pair.refreshToken,
    KEY: key.value,
    CUSTOMER: customerId.id,
    CUSTOMER_JWT: customerUser.token,
    PROFILE: profile.id.id,
    PROVISION_KEY: profile.provisionDeviceKey,
    PROVISION_SECRET: provision.provisionDeviceSecret,
  });
}

// Each attempt has a new tenant, in which the names of the examples are not in use.
test('the examples of docs/http.md and docs/rest.md run as they are written', async () => {
  const blocks = ['docs/http.md', 'docs/rest.md'].flatMap(blocksOf);
  expect(blocks.flat().length).toBeGreaterThan(70);
  const reader = await readerOf();
  const outcomes = await Promise.allSettled(blocks.map((block) => reader.run(block)));
  const failures = outcomes.flatMap((outcome) => (outcome.status === 'rejected' ? [String(outcome.reason)] : []));
  expect(failures).toEqual([]);
});
