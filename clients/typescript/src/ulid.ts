// Ids of runs and requests.

import { randomBytes } from "node:crypto";

const DIGITS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ";

/** Makes a ULID: 48 bits of time in milliseconds and 80 random bits, in Crockford's base 32. */
export function ulid(): string {
  let value = BigInt(Date.now()) << 80n;
  for (const [at, byte] of randomBytes(10).entries()) value |= BigInt(byte) << BigInt(8 * at);
  let text = "";
  for (let shift = 125n; shift >= 0n; shift -= 5n) text += DIGITS[Number((value >> shift) & 31n)];
  return text;
}

const ULID = /^[0-7][0-9A-HJKMNP-TV-Z]{25}$/;

/** Says whether a text is a ULID; other references are names of runs. */
export function isUlid(text: string): boolean {
  return ULID.test(text);
}
