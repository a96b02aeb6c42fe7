"""A WSGI middleware on redis-py's plain client. The server is the standard library's, with a thread per request."""

import json
import threading
import time
from socketserver import ThreadingMixIn
from urllib.parse import parse_qs
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

import ratelimit as rl

redis = Redis.from_url(
    rl.REDIS_URL,
    protocol=3,
    decode_responses=True,
    socket_timeout=rl.REDIS_TIMEOUT_S,
    socket_connect_timeout=rl.REDIS_TIMEOUT_S,
    retry=Retry(NoBackoff(), 0),  # a second try doubles the time-out, and a charge that timed out may have counted
)


def caller_of(environ):
    return environ.get("HTTP_X_API_KEY") or environ["REMOTE_ADDR"]


def respond(start_response, status, body, headers):
    body = json.dumps(body).encode()
    kind = {"Content-Type": "application/json", "Content-Length": str(len(body))}
    start_response(status, list((kind | headers).items()))
    return [body]


class RateLimit:
    def __init__(self, app, prefix):
        self.app, self.prefix = app, prefix

    def __call__(self, environ, start_response):
        if not environ["PATH_INFO"].startswith(self.prefix):
            return self.app(environ, start_response)
        try:
            with redis.pipeline(transaction=False) as pipe:
                for call in rl.calls(caller_of(environ), environ["REMOTE_ADDR"]):
                    pipe.execute_command(*call)
                allowed, headers = rl.verdict(pipe.execute())
            status = "200 OK" if allowed else "429 Too Many Requests"
        except RedisError:  # away, too slow, or out of memory
            status, headers = "200 OK" if rl.FAIL_OPEN else "503 Service Unavailable", {}
        if status != "200 OK":
            return respond(start_response, status, {"error": "try again later"}, headers)
        return self.app(
            environ,
            lambda status, own, *rest: start_response(status, [*own, *headers.items()], *rest),
        )


class Lease:
    """Takes units of a hot key in bulk and spends them here: one call to Redis for LEASE requests.

    Never more than the policy admits is charged. What is leased may be spent later, or be lost when this ends.
    """

    def __init__(self, key):
        self.key, self.left, self.retry_at, self.lock = key, 0, 0.0, threading.Lock()

    def take(self):
        """0, or the ms to wait."""
        with self.lock:
            if not self.left and time.monotonic() >= self.retry_at:
                self.left, _, _, retry_after, _ = redis.execute_command(
                    "RL.SLIDINGLOG", self.key, *rl.HOT, "*", "COST", rl.LEASE, "PARTIAL"
                )
                self.retry_at = time.monotonic() + retry_after / 1000
            if not self.left:
                return max(1, round((self.retry_at - time.monotonic()) * 1000))
            self.left -= 1
            return 0


hot_lease = Lease("limit:hot")


def chat(key, estimate, used):
    """Reserves what the answer may take, then settles what it took. `used` stands for what the model tells."""
    allowed, _, remaining, retry_after, _ = redis.execute_command("RL.TOKEN", key, *rl.TOKENS, "*", "COST", estimate)
    if not allowed:
        return retry_after, 0
    if used > estimate:  # what was taken is taken: it may become a debt
        _, _, remaining, _, _ = redis.execute_command(
            "RL.TOKEN", key, *rl.TOKENS, "*", "COST", used - estimate, "FORCE"
        )
    elif used < estimate:
        remaining = redis.execute_command("RL.REFUND", key, estimate - used, "*")
    return 0, remaining


def app(environ, start_response):
    wait, body = 0, {"ok": True}
    try:
        if environ["PATH_INFO"] == "/chat":
            query = parse_qs(environ["QUERY_STRING"])
            key = f"{rl.tag(caller_of(environ))}:tokens"
            wait, remaining = chat(key, int(query["estimate"][0]), int(query["used"][0]))
            body = {"remaining": remaining}
        elif environ["PATH_INFO"] == "/hot":
            wait = hot_lease.take()
    except RedisError:  # tokens cost money: where the middleware is not asked, no Redis means no
        return respond(start_response, "503 Service Unavailable", {"error": "try again later"}, {})
    if wait:
        return respond(start_response, "429 Too Many Requests", {"error": "too much"}, rl.retry(wait))
    return respond(start_response, "200 OK", body, {})


class Server(ThreadingMixIn, WSGIServer):
    daemon_threads, request_queue_size = True, 128


class Quiet(WSGIRequestHandler):
    def log_message(self, *_args):
        pass


if __name__ == "__main__":
    make_server("127.0.0.1", rl.PORT, RateLimit(app, "/api"), Server, Quiet).serve_forever()
