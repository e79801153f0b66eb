/** Writes a number with its noun for an operator: `1 row`, `2 rows`, `2 entries`. */
export function counted(count: number, one: string, many = `${one}s`): string {
  return `${count} ${count === 1 ? one : many}`;
}
