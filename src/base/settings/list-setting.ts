/** Returns the entries of a setting that is a list with commas; none when it is empty. */
export function listOfSetting(text: string): string[] {
  return text
    .split(',')
    .map((entry) => entry.trim())
    .filter((entry) => entry !== '');
}
