/** Members that many bodies have. Absent and null mean the same. */
import Type from 'typebox';

export const text = Type.Optional(Type.Union([Type.String(), Type.Null()]));
export const reference = Type.Optional(Type.Union([Type.Object({ id: text, entityType: text }), Type.Null()]));
export const version = Type.Optional(Type.Union([Type.Integer(), Type.Null()]));
export const flag = Type.Optional(Type.Union([Type.Boolean(), Type.Null()]));
export const anything = Type.Optional(Type.Unknown());

export const contact = {
  country: text,
  state: text,
  city: text,
  address: text,
  address2: text,
  zip: text,
  phone: text,
  email: text,
};
