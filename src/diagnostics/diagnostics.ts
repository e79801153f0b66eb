/**
 * Asks all workers of all hosts what they know of a device with trouble, of the devices of a tenant, and of unknown
 * senders. A question goes over the bus (`bus/gather.ts`), and each answer says how many workers were asked and how
 * many answered.
 */
import { limits } from '../base/limits.ts';
import { isObject } from '../base/schema.ts';
import type { Bus } from '../bus/bus.ts';
import { Gather } from '../bus/gather.ts';
import { isListOf, isText, isWhole } from '../bus/messages.ts';
import { isOddTimes, mergeOddTimes, type OddTimes, type OddTimesOfDevices } from './odd-times.ts';
import { isOutcome, mergeOutcomes, type Outcome } from './outcome.ts';
import { isStranger, type Stranger, type Strangers } from './strangers.ts';
import type { RefusedDevice, Troubles } from './troubles.ts';

export const orders = ['newest', 'most'] as const;
type Order = (typeof orders)[number];

/** The open session of a device. */
export interface LiveSession {
  /** Milliseconds. */
  connectedAt: number;
  /** '' when the device is a child of a gateway. */
  address: string;
  /** Number of the gateway that acts for the device; null = a connection of its own. */
  gateway: number | null;
}

interface Question {
  device?: number;
  tenant?: string;
  order?: Order;
}

interface DeviceAnswer {
  since: number;
  oddTimes: OddTimes[];
  refusals: { count: number; outcomes: Outcome[] };
  connections: Outcome[];
  session: LiveSession | null;
}

/** One of its members is set. */
interface Answer {
  device?: DeviceAnswer;
  refused?: RefusedDevice[];
  strangers?: Stranger[];
}

export interface Workers {
  asked: number;
  answered: number;
}

interface Diagnosis {
  workers: Workers;
  /** Milliseconds since which every worker that answered has recorded. */
  since: number;
  refusalCount: number;
  refusals: Outcome[];
  connections: Outcome[];
  oddTimes: OddTimes[];
  session: LiveSession | null;
}

interface DiagnosticsDeps {
  bus: Bus;
  troubles: Troubles;
  oddTimes: OddTimesOfDevices;
  strangers: Strangers;
  /** The session of a device on this worker. */
  sessionOf: (device: number) => LiveSession | undefined;
}

export class Diagnostics {
  readonly #deps: DiagnosticsDeps;
  readonly #gather: Gather<Question, Answer>;

  constructor(deps: DiagnosticsDeps) {
    this.#deps = deps;
    const answer = (question: Question) => this.#answer(question);
    this.#gather = new Gather({ bus: deps.bus, channel: 'diagnostics', isQuestion, isAnswer, answer });
  }

  async start(): Promise<void> {
    await this.#gather.start();
  }

  stop(): void {
    this.#gather.stop();
  }

  async ofDevice(device: number): Promise<Diagnosis> {
    const { answers, asked } = await this.#gather.ask({ device });
    const known = answers.flatMap(({ device: answer }) => (answer ? [answer] : []));
    const sessions = known.flatMap(({ session }) => (session ? [session] : []));
    return {
      workers: { asked, answered: answers.length },
      since: Math.max(...known.map(({ since }) => since)),
      refusalCount: known.reduce((sum, { refusals }) => sum + refusals.count, 0),
      refusals: mergeOutcomes(known.map(({ refusals }) => refusals.outcomes)),
      connections: mergeOutcomes(known.map(({ connections }) => connections)),
      oddTimes: mergeOddTimes(known.map(({ oddTimes }) => oddTimes)),
      // Two workers may know a session while one takes over from the other.
      session: sessions.sort((a, b) => b.connectedAt - a.connectedAt)[0] ?? null,
    };
  }

  async refusedDevices(tenant: string, order: Order): Promise<{ workers: Workers; devices: RefusedDevice[] }> {
    const { answers, asked } = await this.#gather.ask({ tenant, order });
    const devices = new Map<number, RefusedDevice>();
    for (const each of answers.flatMap(({ refused = [] }) => refused)) {
      const known = devices.get(each.number);
      const last = known && known.last.ts > each.last.ts ? known.last : each.last;
      devices.set(each.number, { ...each, count: each.count + (known?.count ?? 0), last });
    }
    const sorted = [...devices.values()];
    sorted.sort((a, b) => (order === 'most' ? b.count - a.count || b.last.ts - a.last.ts : b.last.ts - a.last.ts));
    return { workers: { asked, answered: answers.length }, devices: sorted.slice(0, limits.refusalsListedMax) };
  }

  async strangers(order: Order): Promise<{ workers: Workers; strangers: Stranger[] }> {
    const { answers, asked } = await this.#gather.ask({ order });
    const networks = new Map<string, Stranger>();
    for (const each of answers.flatMap(({ strangers = [] }) => strangers)) {
      const known = networks.get(each.network);
      const last = known && known.ts > each.ts ? known : each;
      const since = Math.min(each.since, known?.since ?? each.since);
      networks.set(each.network, { ...last, count: each.count + (known?.count ?? 0), since });
    }
    const sorted = [...networks.values()];
    sorted.sort((a, b) => (order === 'most' ? b.count - a.count || b.ts - a.ts : b.ts - a.ts));
    return { workers: { asked, answered: answers.length }, strangers: sorted.slice(0, limits.refusalsListedMax) };
  }

  #answer({ device, tenant, order = 'newest' }: Question): Answer {
    const { troubles, oddTimes, strangers, sessionOf } = this.#deps;
    if (device !== undefined) {
      return {
        device: {
          since: troubles.since,
          oddTimes: oddTimes.of(device),
          refusals: troubles.refusalsOf(device),
          connections: troubles.connectionsOf(device),
          session: sessionOf(device) ?? null,
        },
      };
    }
    if (tenant !== undefined) return { refused: troubles.refusedOf(tenant, order) };
    return { strangers: strangers.list(order) };
  }
}

const isMissing = (value: unknown) => value === undefined;
const isOrder = (value: unknown) => orders.includes(value as Order);

function isQuestion(value: unknown): value is Question {
  if (!isObject(value)) return false;
  const { device, tenant, order } = value;
  const isOfOrder = (isMissing(tenant) || isText(tenant)) && isOrder(order);
  return isWhole(device) || (isMissing(device) && isOfOrder);
}

function isAnswer(value: unknown): value is Answer {
  if (!isObject(value)) return false;
  const { device, refused, strangers } = value;
  if (device !== undefined) return isDeviceAnswer(device);
  return refused === undefined ? isListOf(strangers, isStranger) : isListOf(refused, isRefusedDevice);
}

function isDeviceAnswer(value: unknown): value is DeviceAnswer {
  if (!isObject(value)) return false;
  const { since, oddTimes, refusals, connections, session } = value;
  return (
    isWhole(since) &&
    isListOf(oddTimes, isOddTimes) &&
    isObject(refusals) &&
    isWhole(refusals['count']) &&
    isListOf(refusals['outcomes'], isOutcome) &&
    isListOf(connections, isOutcome) &&
    (session === null || isLiveSession(session))
  );
}

function isLiveSession(value: unknown): value is LiveSession {
  if (!isObject(value)) return false;
  const { connectedAt, address, gateway } = value;
  return isWhole(connectedAt) && isText(address) && (gateway === null || isWhole(gateway));
}

function isRefusedDevice(value: unknown): value is RefusedDevice {
  return isObject(value) && isWhole(value['number']) && isWhole(value['count']) && isOutcome(value['last']);
}
