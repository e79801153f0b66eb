/**
 * The engines that this process started: none outlasts the process, and one that ended by itself is reported. `Engine`
 * enters when it is made, and leaves when it is destroyed.
 */

interface RunningEngine {
  readonly hasEndedByItself: boolean;
  tail(lines?: number): string;
  destroyAtOnce(): Promise<void>;
}

/** Engines that may run, or have a directory to remove. */
const engines = new Set<RunningEngine>();

/** Engines that had ended by themselves when they were destroyed. */
let endedEngines: RunningEngine[] = [];

/** True when this process is ending: an engine that is started now would outlast the process. */
let isEnding = false;

export function enterEngine(engine: RunningEngine): void {
  engines.add(engine);
}

/** Called before the processes of the engine are killed. */
export function noteEnd(engine: RunningEngine): void {
  if (engines.has(engine) && engine.hasEndedByItself) endedEngines.push(engine);
}

export function leaveEngine(engine: RunningEngine): void {
  engines.delete(engine);
}

/** Ends all engines of this process at once, in any state: after an error. */
export async function destroyEngines(): Promise<void> {
  await Promise.all([...engines].map((engine) => engine.destroyAtOnce()));
}

/** Destroys the engines before this process ends: no engine can be started any more. */
export async function destroyEnginesForGood(): Promise<void> {
  isEnding = true;
  await destroyEngines();
}

export function refuseAtTheEnd(): void {
  if (isEnding) throw new Error('this process is ending: it starts no engine any more');
}

/** Returns the engines that have ended by themselves since the last call. */
export function takeEndedEngines(): RunningEngine[] {
  const taken = [...endedEngines, ...[...engines].filter((engine) => engine.hasEndedByItself)];
  endedEngines = [];
  return taken;
}
