/** Finds what a stream has lost, by comparing its state with the stored position. Pure rules. */
import type { StreamPosition } from './position-store.ts';
import type { LaneState } from './stream-link.ts';

export interface Loss {
  /** `created` of the stream that lost the messages. */
  created: string;
  /**
   * `removed`: the stream was deleted, and perhaps made again. `cut`: its newest messages are gone, as after a loss of
   * unsynced data. `gap`: messages in it are gone, by a purge or by damage.
   */
  kind: 'removed' | 'cut' | 'gap';
  /** The numbers of the messages. Some of them may be in ClickHouse already. */
  from: number;
  to: number;
}

interface Findings {
  losses: Loss[];
  /** The stream is not the one of the position. */
  isOther: boolean;
  /** The stream ends before messages that it had. */
  isCut: boolean;
}

/** Gaps of one report. */
const gapsMax = 100;

export function findLosses(
  { created, floor, last }: Pick<StreamPosition, 'created' | 'floor' | 'last'>,
  state: Pick<LaneState, 'created' | 'begin' | 'first' | 'last' | 'lost'>,
): Findings {
  if (created !== state.created) {
    // Messages after the stored position are lost as well, and their number is unknown: a removed stream is always a
    // loss.
    const removed: Loss = { created, kind: 'removed', from: floor + 1, to: last };
    return { losses: [removed, ...gapsOf(state, state.begin - 1)], isOther: true, isCut: false };
  }
  const isCut = state.last < last;
  const cut: Loss[] = isCut ? [{ created, kind: 'cut', from: state.last + 1, to: last }] : [];
  return { losses: [...cut, ...gapsOf(state, floor)], isOther: false, isCut };
}

/** Returns the messages after `floor` that are gone although later ones came. */
function gapsOf({ created, first, lost }: Pick<LaneState, 'created' | 'first' | 'lost'>, floor: number): Loss[] {
  const gaps: Loss[] = first > floor + 1 ? [{ created, kind: 'gap', from: floor + 1, to: first - 1 }] : [];
  for (const number of lost) {
    if (number <= floor) continue;
    const open = gaps.at(-1);
    // Above the cap, what is between two gaps counts as lost: the report stays bounded.
    if (open && (open.to === number - 1 || gaps.length >= gapsMax)) open.to = number;
    else gaps.push({ created, kind: 'gap', from: number, to: number });
  }
  return gaps;
}
