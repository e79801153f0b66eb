/**
 * Calls that devices make to the server (client-side RPC), from any door and with any JSON document. A table of rules
 * answers them (table.ts). A call that no rule answers waits until its timeout; the number of waiting calls is capped.
 */
import type { Attributes } from '../attributes/attributes.ts';
import type { Scope } from '../attributes/scope.ts';
import type { Clock } from '../base/clock.ts';
import { badRequest, Fault, unavailable } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import type { Metrics } from '../base/metrics/metrics.ts';
import { Places, placeOwners } from '../base/places.ts';
import { type Scheduler, systemScheduler } from '../base/scheduler.ts';
import type { Shards } from '../clickhouse/shards.ts';
import { readLatest } from '../telemetry/latest.ts';
import { type Json, readJson } from '../value/json.ts';
import { strictForm, type TypedValue, typedValue } from '../value/typed.ts';
import type { Rule } from './table.ts';
import { jsonText, memberAt, type Placeholder, type Template, writeTemplate } from './template.ts';

export interface CallsDeps {
  rules: Rule[];
  attributes: Attributes;
  shards: Shards;
  clock: Clock;
  scheduler?: Scheduler;
  metrics: Metrics;
  timeoutMs: number;
  /** Open calls of this worker; the default is the cap in `limits`. */
  openMax?: number;
}

interface CallingDevice {
  number: number;
  id: string;
  name: string;
  tenantId: string;
  customerId: string | null;
}

/** Values that must be read from a store, as JSON by key. */
type Values = Map<Placeholder['root'], Map<string, string>>;

const scopes: [Placeholder['root'], Scope][] = [
  ['client', 'CLIENT_SCOPE'],
  ['shared', 'SHARED_SCOPE'],
  ['server', 'SERVER_SCOPE'],
];

const withoutMethod = badRequest(
  'rpc_method',
  'Member "method" must be a string, because no rule takes calls without one.',
);

const callsFull = unavailable('client_rpc_full', 'This server has its maximum of open calls; try again later.');
const callsShare = new Fault(
  'client_rpc_share',
  'The devices of your customer or tenant have too many open calls: call less often.',
  1,
);

function methodOf(document: Json): string | null {
  const method = memberAt(document, 'method');
  return document instanceof Map && typeof method === 'string' ? method : null;
}

export class Calls {
  readonly #deps: CallsDeps;
  /** Open calls by device. */
  readonly #open = new Map<number, number>();
  readonly #waits = new Set<() => void>();
  readonly #places: Places;
  #closed = false;

  constructor(deps: CallsDeps) {
    this.#deps = deps;
    this.#places = new Places(deps.openMax ?? limits.clientCallsMax);
    deps.metrics.observed('client_rpc_open', 'Calls of devices that wait for an answer.', () => this.#places.held);
  }

  /** Returns the refusal of this call; undefined when there is none. */
  refusal({ number, tenantId, customerId }: Omit<CallingDevice, 'id' | 'name'>, document: Json): Fault | undefined {
    // No rule would ever answer the call.
    if (methodOf(document) === null && this.#ruleFor(null) === undefined) return withoutMethod;
    const open = this.#open.get(number) ?? 0;
    if (open >= limits.clientCallsPerDeviceMax) {
      const message = `The device has ${open} calls without an answer, which is the most it can have.`;
      return new Fault('client_rpc_device_full', message, 1);
    }
    const outcome = this.#places.outcome(placeOwners(tenantId, customerId));
    if (outcome === 'taken') return undefined;
    return outcome === 'full' ? callsFull : callsShare;
  }

  /**
   * Returns the answer as JSON; undefined after the timeout, or when the device has disconnected. Throws the refusal.
   */
  async answer(device: CallingDevice, document: Json, gone: AbortSignal): Promise<string | undefined> {
    const refusal = this.refusal(device, document);
    if (refusal) throw refusal;
    this.#open.set(device.number, (this.#open.get(device.number) ?? 0) + 1);
    const owners = placeOwners(device.tenantId, device.customerId);
    this.#places.take(owners);
    try {
      const name = methodOf(document);
      const rule = this.#ruleFor(name);
      if (rule) return await this.#apply(rule, device, document, name);
      await this.#wait(gone);
      return undefined;
    } finally {
      this.#places.release(owners);
      const left = this.#open.get(device.number)! - 1;
      if (left > 0) this.#open.set(device.number, left);
      else this.#open.delete(device.number);
    }
  }

  /** Ends waiting calls with 408, so that their devices call another server. */
  close(): void {
    this.#closed = true;
    for (const end of [...this.#waits]) end();
  }

  #ruleFor(method: string | null): Rule | undefined {
    return this.#deps.rules.find((each) => each.matches(method));
  }

  async #apply(rule: Rule, device: CallingDevice, document: Json, method: string | null): Promise<string> {
    const { answer, setShared } = rule;
    const values = await this.#read(device, [answer, ...(setShared ? [setShared] : [])]);
    const now = this.#deps.clock.now();
    const params = document instanceof Map ? (document.get('params') ?? null) : document;
    const valueAt = ({ root, rest }: Placeholder): string | undefined => {
      switch (root) {
        case 'now':
          return String(now);
        case 'method':
          return JSON.stringify(method);
        case 'params':
          return jsonText(memberAt(params, rest));
        case 'device':
          return JSON.stringify(rest === 'id' ? device.id : device.name);
        default:
          return values.get(root)?.get(rest);
      }
    };
    if (setShared) await this.#setShared(device, writeTemplate(setShared, valueAt));
    return writeTemplate(answer, valueAt);
  }

  /** Makes one read for each scope that the templates name. */
  async #read(device: CallingDevice, templates: Template[]): Promise<Values> {
    const { attributes, shards } = this.#deps;
    const values: Values = new Map();
    const keysOf = (root: Placeholder['root']) => {
      const placeholders = templates
        .flatMap((template) => template.placeholders)
        .filter((placeholder) => placeholder.root === root);
      return [...new Set(placeholders.map((placeholder) => placeholder.rest))];
    };
    const keep = (root: Placeholder['root'], rows: { key: string; value: TypedValue }[]) =>
      values.set(root, new Map(rows.map(({ key, value }) => [key, strictForm(value)])));
    const latestKeys = keysOf('latest');
    await Promise.all([
      ...scopes.map(async ([root, scope]) => {
        const keys = keysOf(root);
        if (keys.length > 0) await attributes.readFor(device, device.number, [scope], keys, (rows) => keep(root, rows));
      }),
      latestKeys.length > 0 &&
        readLatest(shards.readsOf(device.tenantId).of(device.number), device.number, latestKeys).then((points) =>
          keep('latest', points),
        ),
    ]);
    return values;
  }

  /** Sets the attributes with the types that the rule gives: a string stays a string. A null sets nothing. */
  async #setShared({ number, tenantId }: CallingDevice, text: string): Promise<void> {
    const castNumericStrings = false;
    const entries = new Map<string, TypedValue>();
    const object = readJson(Buffer.from(text));
    if (!(object instanceof Map)) return;
    for (const [key, json] of object) {
      const value = typedValue(json, castNumericStrings);
      if (value) entries.set(key, value);
    }
    if (entries.size > 0) await this.#deps.attributes.save(number, 'SHARED_SCOPE', entries, tenantId);
  }

  /** Waits until the timeout, the end of the connection, or the stop of the server. */
  #wait(gone: AbortSignal): Promise<void> {
    const { scheduler = systemScheduler, timeoutMs } = this.#deps;
    return new Promise((resolve) => {
      const end = () => {
        stopTimer();
        gone.removeEventListener('abort', end);
        this.#waits.delete(end);
        resolve();
      };
      const stopTimer = scheduler.after(timeoutMs, end);
      this.#waits.add(end);
      gone.addEventListener('abort', end);
      if (gone.aborted || this.#closed) end();
    });
  }
}
