/** Says why Redis cannot be reached. The words stay equal while the cause does, because each change is a log line. */

/** A message of ioredis, which counts the pause before the next round and says this also when Sentinels answer. */
const fromSentinels =
  /^All sentinels are unreachable(?: and retry is disabled\.|\. Retrying from scratch after \d+ms\.)(?: Last error: (.*))?$/;

export function redisFailureOf({ message }: Error): string {
  const [matched, cause] = fromSentinels.exec(message) ?? [];
  if (matched === undefined) return message;
  const known = 'no Sentinel names a master';
  return cause === undefined || cause === '' ? known : `${known}: ${cause.replace(/\.$/, '')}`;
}
