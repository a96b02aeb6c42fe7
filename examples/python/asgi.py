"""An ASGI middleware, shown with FastAPI, on redis-py's asyncio client."""

import asyncio
import time

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from starlette.datastructures import Headers, MutableHeaders

import ratelimit as rl

redis = Redis.from_url(
    rl.REDIS_URL,
    protocol=3,
    decode_responses=True,
    socket_timeout=rl.REDIS_TIMEOUT_S,
    socket_connect_timeout=rl.REDIS_TIMEOUT_S,
    retry=Retry(NoBackoff(), 0),  # a second try doubles the time-out, and a charge that timed out may have counted
)


def caller_of(headers, ip):
    return headers.get("x-api-key") or ip


class RateLimit:
    def __init__(self, app, prefix):
        self.app, self.prefix = app, prefix

    async def __call__(self, scope, receive, send):
        if scope["type"] != "http" or not scope["path"].startswith(self.prefix):
            return await self.app(scope, receive, send)
        ip = scope["client"][0]
        try:
            async with redis.pipeline(transaction=False) as pipe:
                for call in rl.calls(caller_of(Headers(scope=scope), ip), ip):
                    pipe.execute_command(*call)
                allowed, headers = rl.verdict(await pipe.execute())
            status = 200 if allowed else 429
        except RedisError:  # away, too slow, or out of memory
            status, headers = 200 if rl.FAIL_OPEN else 503, {}
        if status != 200:
            return await JSONResponse({"error": "try again later"}, status, headers)(scope, receive, send)

        async def send_with_headers(message):
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(headers)
            await send(message)

        await self.app(scope, receive, send_with_headers)


class Lease:
    """Takes units of a hot key in bulk and spends them here: one call to Redis for LEASE requests.

    Never more than the policy admits is charged. What is leased may be spent later, or be lost when this ends.
    """

    def __init__(self, key):
        self.key, self.left, self.retry_at, self.lock = key, 0, 0.0, asyncio.Lock()

    async def take(self):
        """0, or the ms to wait."""
        async with self.lock:
            if not self.left and time.monotonic() >= self.retry_at:
                self.left, _, _, retry_after, _ = await redis.execute_command(
                    "RL.SLIDINGLOG", self.key, *rl.HOT, "*", "COST", rl.LEASE, "PARTIAL"
                )
                self.retry_at = time.monotonic() + retry_after / 1000
            if not self.left:
                return max(1, round((self.retry_at - time.monotonic()) * 1000))
            self.left -= 1
            return 0


app = FastAPI()
app.add_middleware(RateLimit, prefix="/api")
hot_lease = Lease("limit:hot")


@app.exception_handler(RedisError)
async def closed(_request, _error):
    """Tokens cost money: where the middleware is not asked, no Redis means no."""
    return JSONResponse({"error": "try again later"}, 503)


def denied(retry_after):
    return JSONResponse({"error": "too much"}, 429, rl.retry(retry_after))


@app.get("/api")
async def api():
    return {"ok": True}


@app.post("/chat")
async def chat(request: Request, estimate: int, used: int):
    """Reserves what the answer may take, then settles what it took. `used` stands for what the model tells."""
    key = f"{rl.tag(caller_of(request.headers, request.client.host))}:tokens"
    allowed, _, remaining, retry_after, _ = await redis.execute_command(
        "RL.TOKEN", key, *rl.TOKENS, "*", "COST", estimate
    )
    if not allowed:
        return denied(retry_after)
    if used > estimate:  # what was taken is taken: it may become a debt
        _, _, remaining, _, _ = await redis.execute_command(
            "RL.TOKEN", key, *rl.TOKENS, "*", "COST", used - estimate, "FORCE"
        )
    elif used < estimate:
        remaining = await redis.execute_command("RL.REFUND", key, estimate - used, "*")
    return {"remaining": remaining}


@app.get("/hot")
async def hot():
    wait = await hot_lease.take()
    return denied(wait) if wait else {"ok": True}


if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=rl.PORT, log_level="warning")
