/** The rules for a new password (docs/rest.md#passwords): the check, and the form in which consoles show them. */
import { badRequest } from '../base/errors.ts';
import { limits } from '../base/limits.ts';

const { passwordCharsMin: charsMin, passwordCharsMax: charsMax } = limits;

export const passwordPolicy = {
  minimumLength: charsMin,
  maximumLength: charsMax,
  minimumUppercaseLetters: null,
  minimumLowercaseLetters: null,
  minimumDigits: null,
  minimumSpecialCharacters: null,
  allowWhitespaces: true,
  forceUserToResetPasswordIfNotValid: false,
  passwordExpirationPeriodDays: null,
  passwordReuseFrequencyDays: null,
};

export function checkPassword(password: string): void {
  if (password.length > charsMax) {
    throw badRequest('password_length', `Password must be no more than ${charsMax} characters in length.`);
  }
  if (password.length < charsMin) {
    throw badRequest('password_length', `Password must be ${charsMin} or more characters in length.`);
  }
}
