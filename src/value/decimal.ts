/**
 * Decimals of more digits than a double can count, as scripts print their computed numbers (`21.499999999999996`),
 * without a string. Pairs of doubles carry twice the bits and show when even these bits are too few.
 */

/**
 * Returns the double nearest to (high · 10^lowDigits + low) / 10^fractionDigits; NaN when two doubles are too close,
 * and the string must be parsed. `high` and `low` are integers below 10^15, `lowDigits` at most 15, `fractionDigits` at
 * most 22.
 */
export function decimal(high: number, low: number, lowDigits: number, fractionDigits: number): number {
  const factor = powersOfTen[lowDigits]!;
  const product = high * factor;
  const sum = product + low;
  // The rounding errors of both operations; integers small enough to be exact.
  const lost = low - (sum - product) + lostByProduct(high, factor, product);
  const divisor = powersOfTen[fractionDigits]!;
  const quotient = sum / divisor;
  const back = quotient * divisor;
  const rest = sum - back - lostByProduct(quotient, divisor, back) + lost;
  // The true value is quotient + correction, to about 2^-100 of the quotient.
  const correction = rest / divisor;
  const doubt = quotient * 2 ** -98;
  const nearest = quotient + (correction - doubt);
  return nearest === quotient + (correction + doubt) ? nearest : Number.NaN;
}

/** Returns exactly a · b - product, where `product` is a · b rounded (Dekker, with Veltkamp's halves). */
function lostByProduct(a: number, b: number, product: number): number {
  const aTop = topHalf(a);
  const bTop = topHalf(b);
  const aRest = a - aTop;
  const bRest = b - bTop;
  return aTop * bTop - product + aTop * bRest + aRest * bTop + aRest * bRest;
}

function topHalf(value: number): number {
  const scaled = value * 134_217_729; // 2^27 + 1
  return scaled - (scaled - value);
}

/** Powers of ten that a double holds exactly: up to 22. */
export const powersOfTen = Float64Array.from({ length: 23 }, (_, i) => Number(`1e${i}`));
