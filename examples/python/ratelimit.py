"""What the two services share: their settings, the policies, the calls of a request, the headers of its answer."""

import hashlib
import os

PORT = int(os.environ.get("PORT", 8000))
REDIS_URL = os.environ.get("REDIS_URL", "redis://127.0.0.1:6379")
REDIS_TIMEOUT_S = int(os.environ.get("REDIS_TIMEOUT_MS", 100)) / 1000
FAIL_OPEN = os.environ.get("FAIL", "open") == "open"
LEGACY_HEADERS = os.environ.get("LEGACY_HEADERS") == "1"

# Name, algorithm, limit and window in ms: per API key, and per address that uses it.
POLICIES = [("key", "GCRA", 100, 60_000), ("ip", "SLIDINGLOG", 10, 1_000)]
TOKENS = (10_000, 3_600_000)
HOT = (1_000, 3_600_000)
LEASE = 50


def tag(caller):
    """A caller's keys share a hash tag, so a cluster keeps them on one node. Hashed: no secret, no brace gets in."""
    return "limit:{" + hashlib.sha256(caller.encode()).hexdigest()[:16] + "}"


def calls(caller, ip):
    """One round trip: charge both limiters or none, then ask each when it has more."""
    keys = [f"{tag(caller)}:key", f"{tag(caller)}:ip:{ip}"]
    clauses = [word for _, *clause in POLICIES for word in clause]
    return [["RL.MULTI", len(keys), *keys, "*", *clauses], *(["RL.INSPECT", key, "*"] for key in keys)]


def verdict(replies):
    """Whether the request may pass, and the headers of its answer."""
    (allowed, retry_after, limiters), *states = replies
    policy, state = [], []
    for (name, _, limit, window), limiter, known in zip(POLICIES, limiters, states):
        policy.append(f'"{name}";q={limit};w={window // 1000}')
        # Where nothing is charged there is no key: all is left.
        next_after = known["next_after"] if known else 0
        state.append(f'"{name}";r={limiter[2]};t={seconds(next_after)}')
    headers = {"RateLimit-Policy": ", ".join(policy), "RateLimit": ", ".join(state)}
    if LEGACY_HEADERS:
        _, limit, remaining, _, reset_after = min(limiters, key=lambda limiter: limiter[2])
        headers["X-RateLimit-Limit"] = str(limit)
        headers["X-RateLimit-Remaining"] = str(remaining)
        headers["X-RateLimit-Reset"] = str(seconds(reset_after))
    return allowed == 1, headers | retry(0 if allowed else retry_after)


def retry(retry_after):
    """None for 0 (allowed) and for -1 (never)."""
    return {"Retry-After": str(seconds(retry_after))} if retry_after > 0 else {}


def seconds(ms):
    return -(-ms // 1000)
