/**
 * Names of settings that an operator may have misspelt: keys of a settings file, and names of the environment. Only
 * names leave this file, never a value: a misspelt name may have a password as its value.
 */

/** First words that other programs use as well: two words together are a prefix of Millrace's own. */
const genericWords = new Set(
  'ACTORS ADMIN CLIENT DATA DEFAULT DEMO JSON LIMITS LOG MIN RATE SIMPLE SYSTEM WRONG'.split(' '),
);

/** Names of other programs with a prefix of ours: proxies, OpenSSL, systemd, and what Kubernetes sets for services. */
const foreignName =
  /^(HTTPS?_PROXY|SSL_CERT_(FILE|DIR)|JOURNAL_STREAM|\w+_SERVICE_(HOST|PORT)(_\w+)?|\w+_PORT_\d+_(TCP|UDP)(_\w+)?)$/;
/** The value of `REDIS_PORT` and the like in a pod, which is an address. */
const serviceAddress = /^(tcp|udp):\/\//;

export interface UnknownName {
  name: string;
  /** The setting that was probably meant; '' = none is near. */
  meant: string;
}

/** Returns the names of the environment that look like a setting and are none, in their order. */
export function unknownNames(environment: NodeJS.ProcessEnv, known: ReadonlySet<string>): UnknownName[] {
  const prefixes = new Set([...known].map(prefixOf).filter((prefix) => prefix !== ''));
  return Object.entries(environment).flatMap(([name, value = '']) => {
    if (known.has(name) || foreignName.test(name) || serviceAddress.test(value)) return [];
    const isOurs = prefixes.has(prefixOf(name)) || isNear(name, known);
    return isOurs ? [{ name, meant: meantBy(name, known) }] : [];
  });
}

/** Returns one sentence for the operator. */
export function describeUnknown({ name, meant }: UnknownName): string {
  return `${name} is no setting of Millrace.${meant === '' ? '' : ` Did you mean ${meant}?`}`;
}

function prefixOf(name: string): string {
  const words = name.split('_');
  const length = genericWords.has(words[0]!) ? 2 : 1;
  return words.length > length ? words.slice(0, length).join('_') : '';
}

/** A name in another case is near, too. */
function isNear(name: string, known: ReadonlySet<string>): boolean {
  const editsMax = name.length < 8 || name !== name.toUpperCase() ? 1 : 2;
  for (const candidate of known) {
    if (Math.abs(candidate.length - name.length) <= editsMax && edits(name, candidate) <= editsMax) return true;
  }
  return false;
}

function meantBy(name: string, known: ReadonlySet<string>): string {
  const candidates = [...known].filter((each) => !each.endsWith('_FILE') || /_FI?L?E?$/.test(name));
  const best = nearest(name, candidates);
  const distance = edits(name, best);
  if (distance <= 2) return best;
  const full = candidates.filter((each) => isAbbreviation(name, each)).sort((a, b) => a.length - b.length)[0];
  return full ?? (distance <= name.length / 4 ? best : '');
}

/** True for HTTP_PORT and HTTP_BIND_PORT, or CLICKHOUSE_DB and CLICKHOUSE_DATABASE. */
function isAbbreviation(name: string, full: string): boolean {
  const words = name.split('_');
  let at = 0;
  for (const word of full.split('_')) if (at < words.length && isShortFor(words[at]!, word)) at += 1;
  return words.length > 1 && at === words.length;
}

function isShortFor(short: string, word: string): boolean {
  let at = 0;
  for (const letter of word) if (letter === short[at]) at += 1;
  return short !== '' && short[0] === word[0] && at === short.length;
}

/** Returns the known name with the fewest edits to `name`. */
export function nearest(name: string, known: string[]): string {
  let best = known[0]!;
  let bestEdits = Number.POSITIVE_INFINITY;
  for (const candidate of known) {
    const count = edits(name, candidate);
    if (count < bestEdits) [best, bestEdits] = [candidate, count];
  }
  return best;
}

/** Counts the letters to insert, remove, change, or swap with the next one; upper and lower case are equal. */
function edits(left: string, right: string): number {
  const [a, b] = [left.toLowerCase(), right.toLowerCase()];
  let older: number[] = [];
  let previous = Array.from({ length: b.length + 1 }, (_, i) => i);
  for (let i = 1; i <= a.length; i += 1) {
    const current = [i];
    for (let j = 1; j <= b.length; j += 1) {
      const change = previous[j - 1]! + (a[i - 1] === b[j - 1] ? 0 : 1);
      const isSwap = i > 1 && j > 1 && a[i - 1] === b[j - 2] && a[i - 2] === b[j - 1];
      const swap = isSwap ? older[j - 2]! + 1 : Number.POSITIVE_INFINITY;
      current.push(Math.min(change, swap, previous[j]! + 1, current[j - 1]! + 1));
    }
    [older, previous] = [previous, current];
  }
  return previous[b.length]!;
}
