/**
 * A command whose caller waits for its outcome at this worker (`send.ts`). Each event of the command ends the wait, or
 * changes what the end will mean: once a session may have taken the command, the device may have executed it.
 */
import { type Fault, tooLarge } from '../base/errors.ts';
import { busAway, mayHaveRun, otherCustomer, type RpcCall, type RpcOutcome } from './rpc.ts';
import type { Command } from './waiters.ts';

interface WaitingCallDeps {
  id: number;
  deadline: number;
  /** Reads whether the device is one of this customer's. */
  isDeviceOf(device: number, customerId: string): Promise<boolean>;
  /** Offers the command again. */
  retry(call: WaitingCall): void;
  /** Called when the outcome is known: this worker owns the command no longer. */
  onEnd(call: WaitingCall): void;
}

export class WaitingCall implements Command {
  readonly device: number;
  readonly tenantId: string;
  readonly customerId: string | null;
  readonly id: number;
  readonly method: string;
  readonly params: string;
  readonly oneway: boolean;
  readonly deadline: number;
  readonly persistent = false;
  stage: Command['stage'] = 'queued';
  heapAt = -1;
  readonly wanted: Command['wanted'];
  readonly outcome: Promise<RpcOutcome>;
  readonly #deps: WaitingCallDeps;
  #resolve: (outcome: RpcOutcome) => void = () => {};
  #reject: (error: unknown) => void = () => {};
  /** True when a session took the command: the device may have executed it, also when no confirmation came. */
  #mayRun = false;
  /** True while a worker may give the command to its session. */
  #isGranted = false;

  constructor(call: RpcCall, deps: WaitingCallDeps) {
    const { device, tenantId, customerId, callerCustomerId, method, params, oneway } = call;
    this.device = device;
    this.tenantId = tenantId;
    this.customerId = customerId;
    this.id = deps.id;
    this.method = method;
    this.params = params;
    this.oneway = oneway;
    this.deadline = deps.deadline;
    this.wanted =
      callerCustomerId === null
        ? undefined
        : async () => ({ isWanted: await this.#isDeviceOf(callerCustomerId), older: [] });
    this.#deps = deps;
    this.outcome = new Promise((resolve, reject) => {
      this.#resolve = resolve;
      this.#reject = reject;
    });
  }

  granted(isGranted: boolean): void {
    this.#isGranted = isGranted;
  }

  taken(): void {
    this.#mayRun = true;
  }

  confirmed(delivered: boolean, error?: string): void {
    if (error !== undefined) this.fail(tooLarge('rpc_undeliverable', error));
    else if (!delivered) this.#deps.retry(this);
    else if (this.oneway) this.#end({ kind: 'delivered' });
  }

  replied(text: string): void {
    this.#end(this.oneway ? { kind: 'delivered' } : { kind: 'replied', text });
  }

  expired(): void {
    if (this.#mayRun) this.#end({ kind: 'unanswered' });
    else if (this.#isGranted) this.fail(mayHaveRun());
    else this.#end({ kind: 'unreachable' });
  }

  away(): void {
    this.fail(this.#mayRun ? mayHaveRun() : busAway());
  }

  /**
   * Ends the wait because this worker stops: with `refusal`, after which the caller may send the command again, unless
   * the device may have executed the command.
   */
  stopping(refusal: Fault): void {
    this.fail(this.#mayRun || this.#isGranted ? mayHaveRun('this server stops before it has the outcome') : refusal);
  }

  doubtful(): void {
    this.fail(mayHaveRun());
  }

  /** Only persistent commands are withdrawn by message; what makes this one unwanted has ended it. */
  withdrawn(): void {}

  /** Ends the wait because nothing reads the outcome any more. */
  callerGone(): void {
    this.#end({ kind: 'unreachable' });
  }

  fail(error: unknown): void {
    this.#deps.onEnd(this);
    this.#reject(error);
  }

  #end(outcome: RpcOutcome): void {
    this.#deps.onEnd(this);
    this.#resolve(outcome);
  }

  /** Returns false, and fails the call, when the customer of the caller has lost the device. */
  async #isDeviceOf(customerId: string): Promise<boolean> {
    try {
      if (await this.#deps.isDeviceOf(this.device, customerId)) return true;
      this.fail(this.#mayRun ? mayHaveRun() : otherCustomer());
    } catch (error) {
      this.fail(this.#mayRun ? mayHaveRun() : error);
    }
    return false;
  }
}
