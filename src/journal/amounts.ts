/** Frames, their rows and their bytes, as the backlog counts them. */
export interface Amounts {
  frames: number;
  rows: number;
  bytes: number;
}

export function addAmounts(to: Amounts, amounts: Amounts): void {
  to.frames += amounts.frames;
  to.rows += amounts.rows;
  to.bytes += amounts.bytes;
}

export function subtractAmounts(from: Amounts, amounts: Amounts): void {
  from.frames -= amounts.frames;
  from.rows -= amounts.rows;
  from.bytes -= amounts.bytes;
}
