/** Writes a number of bytes for an operator: `3 KiB`, `128 MiB`, `1.5 GiB`. */
export function sizeText(bytes: number): string {
  if (bytes < 10 * 1024 ** 2) return `${Math.ceil(bytes / 1024)} KiB`;
  if (bytes < 1024 ** 3) return `${Math.round(bytes / 1024 ** 2)} MiB`;
  return `${Math.round((bytes / 1024 ** 3) * 10) / 10} GiB`;
}
