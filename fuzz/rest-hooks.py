"""Schemathesis hooks of `npm run fuzz -- rest`: ids that exist, no call that ends its own caller, counts of answers.

`fuzz/rest.ts` names a JSON file in FUZZ_WORLD: `ids` are entities of the engine, `protected` are the users, tenants,
customers and keys that sign the caller in. The file FUZZ_ANSWERS gets how many answers had a status, and the
slowest operations.
"""

import atexit
import json
import os
import re
from collections import Counter
from time import time
from uuid import uuid4

import schemathesis
from hypothesis import strategies as st

with open(os.environ["FUZZ_WORLD"], encoding="utf8") as file:
    world = json.load(file)

# Half of all ids name an entity, so that calls reach what lies behind the checks of ids.
schemathesis.openapi.format("uuid", st.one_of(st.sampled_from(world["ids"]), st.uuids().map(str)))

PROTECTED = set(world["protected"])
ENDS = re.compile(r"/userCredentialsEnabled$|/enabled/")


@schemathesis.hook
def before_call(context, case, kwargs):
    """Gives a call that would delete or disable a protected entity another id."""
    if case.method.upper() != "DELETE" and not ENDS.search(case.path):
        return
    values = case.path_parameters or {}
    for name, value in values.items():
        if str(value).lower() in PROTECTED:
            values[name] = str(uuid4())


@schemathesis.hook
def map_body(context, body):
    """Keeps commands short: the fuzzer has no device that replies. A whole number may be a float."""
    if not isinstance(body, dict):
        return body
    latest = {"timeout": 100, "expirationTime": int(time() * 1000) + 100}
    for name, value in latest.items():
        if isinstance(body.get(name), (int, float)):
            body[name] = min(body[name], value)
    return body


statuses = Counter()
seconds = {}


@schemathesis.hook
def after_call(context, case, response):
    statuses[response.status_code] += 1
    name = f"{case.method} {case.path}"
    seconds[name] = max(seconds.get(name, 0), response.elapsed)


@atexit.register
def write_answers():
    slowest = sorted(seconds.items(), key=lambda each: each[1], reverse=True)[:3]
    with open(os.environ["FUZZ_ANSWERS"], "w", encoding="utf8") as file:
        json.dump({"statuses": statuses, "slowest": slowest}, file, sort_keys=True)
