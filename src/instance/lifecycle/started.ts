/**
 * The started parts of a process, in order. `stop` stops them in the reverse order, so that the order of closing needs
 * no list of its own. Primary, workers and the analytics process each have one.
 */
import type { StopSteps } from './stop-steps.ts';

type Stop = (steps: StopSteps) => unknown;

export class Started {
  readonly #stops: { name: string; stop: Stop; isWhole: boolean }[] = [];

  /** `name` completes "it took 3 s: …". The step may be abandoned when the time of all steps is over. */
  add(name: string, stop: Stop): void {
    this.#stops.push({ name, stop, isWhole: false });
  }

  /** Like `add`, for a step that must not be abandoned: acknowledged messages, or the report of them, depend on it. */
  addWhole(name: string, stop: Stop): void {
    this.#stops.push({ name, stop, isWhole: true });
  }

  /** Stops the last first, and each once. A failure is logged and the next step follows. */
  async stop(steps: StopSteps): Promise<void> {
    for (const { name, stop, isWhole } of this.#stops.splice(0).reverse()) {
      const work = async () => void (await stop(steps));
      await (isWhole ? steps.whole(name, work) : steps.step(name, work));
    }
  }
}
