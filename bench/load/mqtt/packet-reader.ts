/** Cuts a byte stream into packets, for generators: small packets are read in place, a partial packet is completed. */

/** `bytes` holds the whole packet from `start`; its body is from `bodyStart` to `end`. Valid during the call only. */
type TakePacket = (firstByte: number, bytes: Buffer, bodyStart: number, end: number) => void;

export class PacketReader {
  #cut: Buffer | undefined;

  read(piece: Buffer, take: TakePacket): void {
    const bytes = this.#cut ? Buffer.concat([this.#cut, piece]) : piece;
    this.#cut = undefined;
    let at = 0;
    while (at < bytes.length) {
      let length = 0;
      let bodyStart = at + 1;
      let shift = 0;
      let digit = 0x80;
      while (digit & 0x80 && bodyStart < bytes.length) {
        digit = bytes[bodyStart++]!;
        length |= (digit & 0x7f) << shift;
        shift += 7;
      }
      const end = bodyStart + length;
      if (digit & 0x80 || end > bytes.length) {
        this.#cut = Buffer.from(bytes.subarray(at));
        return;
      }
      take(bytes[at]!, bytes, bodyStart, end);
      at = end;
    }
  }
}
