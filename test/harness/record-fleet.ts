/**
 * Fleets whose latest values are records, and the account of all that was acknowledged to them. A gateway sends for
 * enough devices. Each message is sent again until its acknowledgement, on the next host each time, so the account
 * knows the newest value of each key of each device, and every point.
 */
import { randomInt } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import { createFleet } from '../../bench/engine-under-load.ts';
import { recordKind } from '../../src/clickhouse/latest-rows.ts';
import { type Api, type Device, eventually } from './api.ts';
import { type ClickhouseAddress, queryClickhouse } from './clickhouse-queries.ts';
import { type MqttClient, withMqtt } from './mqtt-client.ts';

/** What the fleet needs of a host. */
interface RecordHost {
  readonly api: Api;
  readonly mqttPort: number;
}

interface FleetOptions {
  /** Devices: at most `valuesOfPlace`. Enough for records are 1 200 for each shard. */
  count: number;
  /** Messages of one round, at the same time. */
  parts?: number;
}

const readersCount = 32;
const pageSize = 1_000;
const firstTs = Date.now() - 3_600_000;
/** A value is a place in the order of values, and the device: so each value is sent once. */
const valuesOfPlace = 10_000;
/** Each key is in several lists, and two lists have the same keys. */
const lists = [
  ['a', 'b', 'c'],
  ['c', 'b', 'a'],
  ['a', 'd'],
  ['b', 'c', 'd', 's'],
];

/** The place of the newest value of each key. */
type Newest = Map<string, number>;

/** The ways to read latest values that are compared with the account. */
export type LatestRead = 'all' | 'keys' | 'names';

export class RecordFleet {
  readonly #name: string;
  readonly #hosts: () => readonly RecordHost[];
  readonly #gateway: Device;
  readonly #children: Device[];
  readonly #newest: Newest[];
  readonly hasTs: boolean;
  readonly #parts: number;
  #round = 0;
  #sends = 0;
  /** Messages that were sent again: their points at server time may be there twice. */
  repeated = 0;

  private constructor(
    of: Pick<RecordFleet, 'count'> & {
      name: string;
      hosts: () => readonly RecordHost[];
      gateway: Device;
      children: Device[];
      hasTs: boolean;
      parts: number;
    },
  ) {
    this.#name = of.name;
    this.#hosts = of.hosts;
    this.#gateway = of.gateway;
    this.#children = of.children;
    this.#newest = of.children.map(() => new Map());
    this.hasTs = of.hasTs;
    this.#parts = of.parts;
  }

  /** Makes a fleet that sends `at its time`, also older times after newer ones, or `at server time`. */
  static async make(
    hosts: () => readonly RecordHost[],
    times: 'at its time' | 'at server time',
    { count, parts = 1 }: FleetOptions,
  ): Promise<RecordFleet> {
    const hasTs = times === 'at its time';
    const name = hasTs ? 'own' : 'server';
    const { api } = hosts()[0]!;
    const gateway = await api.createGateway(`gateway ${times}`);
    const children = await createFleet(api, name, count);
    return new RecordFleet({ name, hosts, gateway, children, hasTs, parts, count });
  }

  get count(): number {
    return this.#children.length;
  }

  /** Sends a record of each child. With times of their own every second round is older than the one before. */
  async send(): Promise<void> {
    const place = this.hasTs ? this.#round ^ 1 : this.#round;
    const size = Math.ceil(this.count / this.#parts);
    const parts = Array.from({ length: this.#parts }, (_, part) => {
      return Array.from({ length: Math.min(size, this.count - part * size) }, (_, i) => part * size + i);
    });
    await this.#sendAll(parts.map((children) => this.#messageOf(children, place)));
    for (const [n, newest] of this.#newest.entries()) {
      for (const key of keysOf(n, place)) newest.set(key, Math.max(place, newest.get(key) ?? 0));
    }
    this.#round += 1;
  }

  #messageOf(children: readonly number[], place: number): string {
    const record = (n: number) => {
      const values = Object.fromEntries(keysOf(n, place).map((key) => [key, this.#valueOf(n, key, place)]));
      return this.hasTs ? { ts: firstTs + place, values } : values;
    };
    return JSON.stringify(Object.fromEntries(children.map((n) => [`${this.#name}-${n}`, [record(n)]])));
  }

  /** Sends messages until each of them is acknowledged: those of one try over one connection. */
  async #sendAll(messages: readonly string[]): Promise<void> {
    for (let left = [...messages]; left.length > 0; ) {
      left = await this.#sendOnce(left);
      if (left.length === 0) return;
      this.repeated += left.length;
      await sleep(50);
    }
  }

  /** Returns the messages that were not acknowledged. */
  async #sendOnce(messages: readonly string[]): Promise<string[]> {
    this.#sends += 1;
    const hosts = this.#hosts();
    const { mqttPort: port } = hosts[this.#sends % hosts.length]!;
    const left = new Set(messages);
    const send = async (client: MqttClient) => {
      const packets = messages.map((message) => client.publishPacket('v1/gateway/telemetry', message));
      await client.write(...packets);
      for (const [i, { messageId }] of packets.entries()) {
        const { reasonCode } = await client.pick('puback', { messageId: messageId! }, 60_000);
        if ((reasonCode ?? 0) < 0x80) left.delete(messages[i]!);
      }
    };
    await withMqtt({ port, token: this.#gateway.token }, send).catch(() => undefined);
    return [...left];
  }

  #valueOf(n: number, key: string, place: number): number | string {
    const number = place * valuesOfPlace + n;
    return key === 's' ? `${this.#name} ${number}` : this.hasTs ? number : -1 - number;
  }

  #expected(n: number): string[] {
    return [...this.#newest[n]!].map(([key, place]) => this.#shown(key, this.#valueOf(n, key, place), place)).sort();
  }

  #shown(key: string, value: unknown, place: number): string {
    return `${key} ${value}${this.hasTs ? ` at ${place}` : ''}`;
  }

  /** Waits until each device has its newest values, by every way to read them. */
  async expectNewest(ways: readonly LatestRead[] = ['all', 'keys', 'names'], msMax = 60_000): Promise<void> {
    let left = new Map(this.#children.map((_, n) => [n, 'not read']));
    const about = () => `${left.size} devices are wrong: ${[...left.values()].slice(0, 5).join('\n')}`;
    for (const way of ways) {
      left = new Map(this.#children.map((_, n) => [n, 'not read']));
      await eventually(async () => {
        left = await this.#wrong(way, [...left.keys()]);
        return left.size === 0;
      }, msMax).catch((cause: unknown) => {
        throw new Error(`${way}: ${about()}`, { cause });
      });
    }
    await eventually(async () => {
      left = await this.#wrongInPages();
      return left.size === 0;
    }, msMax).catch((cause: unknown) => {
      throw new Error(`pages: ${about()}`, { cause });
    });
  }

  /** Returns what each of these children that is not as it should be has. */
  async #wrong(way: LatestRead, children: readonly number[]): Promise<Map<number, string>> {
    const found = new Map<number, string>();
    let next = 0;
    const read = async () => {
      for (let n = children[next++]; n !== undefined; n = children[next++]) {
        // A read that fails ends no other read, so a next try starts when all reads of this try have ended.
        const read = await this.#read(n, way).catch((error: Error) => [error.message]);
        const [are, should] = [read, this.#expectedBy(n, way)].map((each) => each.join(', '));
        if (are !== should) found.set(n, `${this.#name}-${n}: ${are}; not ${should}`);
      }
    };
    await Promise.all(Array.from({ length: readersCount }, read));
    return found;
  }

  #expectedBy(n: number, way: LatestRead): string[] {
    if (way === 'names') return [...this.#newest[n]!.keys()].sort();
    const only = way === 'keys' ? this.#someKeys(n) : undefined;
    return this.#expected(n).filter((each) => only?.includes(each.split(' ')[0]!) ?? true);
  }

  #someKeys(n: number): string[] {
    const keys = [...this.#newest[n]!.keys()].sort();
    return keys.filter((_, i) => i === n % keys.length || i === (n + 1) % keys.length);
  }

  async #read(n: number, way: LatestRead): Promise<string[]> {
    const hosts = this.#hosts();
    const { api } = hosts[n % hosts.length]!;
    const { id } = this.#children[n]!;
    if (way === 'names') {
      const answer = await api.send('GET', `/api/plugins/telemetry/DEVICE/${id}/keys/timeseries`);
      return ((await answer.json()) as string[]).sort();
    }
    const latest = await api.readLatest(id, way === 'keys' ? this.#someKeys(n) : []);
    const shown = Object.entries(latest).map(([key, [point]]) => this.#shown(key, point!.value, point!.ts - firstTs));
    return shown.sort();
  }

  /** Reads all children with queries of entities. */
  async #wrongInPages(): Promise<Map<number, string>> {
    const found = new Map<number, string>();
    const { api } = this.#hosts()[0]!;
    const keys = [...new Set(lists.flat())];
    const name = { type: 'ENTITY_FIELD', key: 'name' };
    let seen = 0;
    for (let page = 0, hasNext = true; hasNext; page += 1) {
      const answer = await api.send('POST', '/api/entitiesQuery/find', {
        entityFilter: { type: 'entityName', entityType: 'DEVICE', entityNameFilter: `${this.#name}-` },
        pageLink: { page, pageSize, sortOrder: { key: name, direction: 'ASC' } },
        entityFields: [name],
        latestValues: keys.map((key) => ({ type: 'TIME_SERIES', key })),
      });
      if (answer.status !== 200) throw new Error(`page ${page}: ${answer.status} ${await answer.text()}`);
      const { data, hasNext: more } = (await answer.json()) as { data: Entity[]; hasNext: boolean };
      for (const { latest } of data) {
        const n = Number(latest['ENTITY_FIELD']!['name']!.value.split('-')[1]);
        const shown = Object.entries(latest['TIME_SERIES']!)
          .filter(([, { value }]) => value !== '')
          .map(([key, { value, ts }]) => this.#shown(key, value, ts - firstTs));
        const [are, should] = [shown.sort(), this.#expected(n)].map((each) => each.join(', '));
        if (are !== should) found.set(n, `${this.#name}-${n}: ${are}; not ${should}`);
      }
      seen += data.length;
      hasNext = more;
    }
    if (seen !== this.count) throw new Error(`${seen} of ${this.count} devices were found`);
    return found;
  }

  /**
   * Returns how many acknowledged points are in the history, how many are not, and how many are there more than once.
   */
  async history(addresses: readonly ClickhouseAddress[]): Promise<{ stored: number; missing: number; double: number }> {
    const query = `SELECT concat(toString(key), ' ', if(kind = 4, text, toString(int))) AS name, count()
      FROM telemetry FINAL WHERE kind != 0 GROUP BY name
      SETTINGS do_not_merge_across_partitions_select_final = 1`;
    const counts = new Map<string, number>();
    for (const address of addresses) {
      for (const [point, count] of await queryClickhouse(address, query)) {
        counts.set(point!, Number(count) + (counts.get(point!) ?? 0));
      }
    }
    const found = { stored: 0, missing: 0, double: 0 };
    for (let round = 0; round < this.#round; round += 1) {
      const place = this.hasTs ? round ^ 1 : round;
      for (let n = 0; n < this.count; n += 1) {
        for (const key of keysOf(n, place)) {
          const count = counts.get(`${key} ${this.#valueOf(n, key, place)}`) ?? 0;
          if (count === 0) found.missing += 1;
          else found.stored += 1;
          if (count > 1) found.double += 1;
        }
      }
    }
    return found;
  }
}

interface Entity {
  latest: Record<string, Record<string, { ts: number; value: string }>>;
}

function keysOf(n: number, place: number): string[] {
  return lists[(n + place) % lists.length]!;
}

/** Checks that every acknowledged point is in the history, and once, as far as no message was sent again. */
export async function expectHistory(fleet: RecordFleet, addresses: readonly ClickhouseAddress[]): Promise<void> {
  const mayBeDouble = fleet.repeated > 0 && !fleet.hasTs;
  let last: unknown;
  await eventually(async () => {
    const { stored, missing, double } = await fleet.history(addresses);
    last = { stored, missing, double };
    return stored > fleet.count && missing === 0 && (double === 0 || mayBeDouble);
  }, 30_000).catch((cause: unknown) => {
    throw new Error(`the history has ${JSON.stringify(last)}`, { cause });
  });
}

/** Lets the fleets send until `during` has ended. */
export async function whileSending(
  fleets: readonly RecordFleet[],
  pauseMs: number,
  during: () => Promise<void>,
): Promise<void> {
  let isOver = false;
  const sending = fleets.map(async (fleet) => {
    while (!isOver) {
      await fleet.send();
      await sleep(randomInt(2 * pauseMs));
    }
  });
  try {
    await during();
  } finally {
    isOver = true;
    await Promise.all(sending);
  }
}

/** Returns the devices of a server whose newest values are in a record. */
export async function devicesInRecords(address: ClickhouseAddress): Promise<number> {
  const newest = 'SELECT device, argMax(kind, rank) AS kind FROM latest FINAL GROUP BY device';
  const rows = await queryClickhouse(address, `SELECT count() FROM (${newest}) WHERE kind = ${recordKind}`);
  return Number(rows[0]![0]);
}
