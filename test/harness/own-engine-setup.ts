/** For tests that start engines of their own: what is built, and data that their engines begin with. */
import build from './build-setup.ts';
import { prepareData } from './engine.ts';

export default async function setup(): Promise<() => void> {
  build();
  return await prepareData();
}
