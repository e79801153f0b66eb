/** Bounds a wait for something that may never happen, as an answer of a server that is silent. */

/** Rejects with the sentence when the promise has not settled in time. */
export async function within<Value>(promise: Promise<Value>, msMax: number, sentence: string): Promise<Value> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<never>((_, reject) => {
    timer = setTimeout(() => reject(new Error(`${sentence} within ${msMax / 1000} s`)), msMax);
  });
  try {
    return await Promise.race([promise, late]);
  } finally {
    clearTimeout(timer);
  }
}
