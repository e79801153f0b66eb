/**
 * Makes SQL of a sum of doubles that does not depend on how ClickHouse divides the rows among threads, blocks and
 * parts. Each double is split into pieces, each of them a multiple of one power of two. A sum of such pieces is exact
 * in a double, so the order of its rows does not matter. The rounding happens once, when the sums of the pieces are
 * added up.
 *
 * The rule holds for sums below 9e21 in size over at most 2^28 doubles. The part of a double below 2^-55 is added in
 * the order of the rows. The rounding of that part changes a result only when the exact sum lies midway between two
 * doubles.
 */

/** Powers of two, 25 bits apart: doubles of up to 2^45 leave 28 bits of a sum to the number of rows. */
const grids = [20, -5, -30, -55];
/** `num * 2^55` of a greater double is not finite. Such a double has one piece, the first. */
const splitMax = powerOfTwo(900);

export type SumPiece = 'piece1' | 'piece2' | 'piece3' | 'piece4' | 'rest';

/** Returns SQL of the pieces of the double `num`; each piece must be added up separately. */
export function sumPieces(num: string): Record<SumPiece, string> {
  const split = `if(abs(${num}) < ${splitMax}, ${num}, 0.)`;
  const [onFirst, onSecond, onThird, onFourth] = grids.map((grid) => onGrid(split, grid));
  return {
    piece1: onGrid(num, grids[0]!),
    piece2: `${onSecond} - ${onFirst}`,
    piece3: `${onThird} - ${onSecond}`,
    piece4: `${onFourth} - ${onThird}`,
    rest: `${split} - ${onFourth}`,
  };
}

/**
 * Returns SQL of the sum, from columns that hold the sums of the pieces. The smallest pieces are added first, which
 * loses the least.
 */
export function sumOfPieces(name: (piece: SumPiece) => string): string {
  const [first, second, third, fourth, rest] = (['piece1', 'piece2', 'piece3', 'piece4', 'rest'] as const).map(name);
  return `((((${rest} + ${fourth}) + ${third}) + ${second}) + ${first})`;
}

/** Returns SQL of the sum of the double `num` over the rows that fulfil `condition`. */
export function equalSumIf(num: string, condition: string): string {
  const pieces = sumPieces(num);
  return sumOfPieces((piece) => `sumIf(${pieces[piece]}, ${condition})`);
}

/** Returns SQL of the multiple of 2^grid that is nearest to `num`; a multiple stays as it is. */
function onGrid(num: string, grid: number): string {
  return `round(${num} * ${powerOfTwo(-grid)}) * ${powerOfTwo(grid)}`;
}

/** Writes every digit, because the shortest text of a large double is not exact. */
function powerOfTwo(exponent: number): string {
  return exponent < 0 ? String(2 ** exponent) : `${BigInt(2 ** exponent)}.`;
}
