//! The calls, and what they mean in HTTP.

use std::collections::HashMap;

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use redis::aio::ConnectionManager;
use redis::{RedisResult, cmd};
use sha2::{Digest, Sha256};

/// Name, algorithm, limit and window in ms: per API key, and per address that uses it.
const POLICIES: [(&str, &str, i64, i64); 2] = [
    ("key", "GCRA", 100, 60_000),
    ("ip", "SLIDINGLOG", 10, 1_000),
];
pub const TOKENS: (i64, i64) = (10_000, 3_600_000);

/// `[allowed, limit, remaining, retry_after, reset_after]`
type Reply = [i64; 5];

pub struct Verdict {
    pub allowed: bool,
    pub retry_after: i64,
    limiters: [Reply; 2],
    next_after: [i64; 2],
}

pub fn seconds(ms: i64) -> i64 {
    (ms + 999) / 1000
}

/// A caller's keys share a hash tag, so a cluster keeps them on one node. Hashed: no secret and no brace gets in.
pub fn tag(caller: &str) -> String {
    let hash = Sha256::digest(caller);
    format!(
        "limit:{{{}}}",
        hash[..8]
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect::<String>()
    )
}

/// One round trip: charges both limiters or none, then asks each when it has more.
pub async fn check(redis: &mut ConnectionManager, caller: &str, ip: &str) -> RedisResult<Verdict> {
    let keys = [
        format!("{}:key", tag(caller)),
        format!("{}:ip:{ip}", tag(caller)),
    ];
    let mut pipe = redis::pipe();
    pipe.cmd("RL.MULTI").arg(keys.len()).arg(&keys).arg("*");
    for (_, algorithm, limit, window) in POLICIES {
        pipe.arg(algorithm).arg(limit).arg(window);
    }
    for key in &keys {
        pipe.cmd("RL.INSPECT").arg(key).arg("*");
    }
    type State = Option<HashMap<String, String>>;
    type Multi = (i64, i64, [Reply; 2]);
    let ((allowed, retry_after, limiters), one, other): (Multi, State, State) =
        pipe.query_async(redis).await?;
    // Where nothing is charged there is no key: all is left.
    let next_after = |state: State| {
        state
            .and_then(|state| state["next_after"].parse().ok())
            .unwrap_or(0)
    };
    let next_after = [next_after(one), next_after(other)];
    Ok(Verdict {
        allowed: allowed == 1,
        retry_after,
        limiters,
        next_after,
    })
}

impl Verdict {
    pub fn headers(&self, legacy: bool) -> HeaderMap {
        let mut headers = HeaderMap::new();
        let mut set = |name: &'static str, value: String| {
            if let Ok(value) = HeaderValue::try_from(value) {
                headers.insert(HeaderName::from_static(name), value);
            }
        };
        let policy = POLICIES
            .map(|(name, _, limit, window)| format!("\"{name}\";q={limit};w={}", window / 1000));
        set("ratelimit-policy", policy.join(", "));
        let state = [0, 1].map(|i| {
            let [_, _, remaining, _, _] = self.limiters[i];
            format!(
                "\"{}\";r={remaining};t={}",
                POLICIES[i].0,
                seconds(self.next_after[i])
            )
        });
        set("ratelimit", state.join(", "));
        let tightest = self
            .limiters
            .iter()
            .min_by_key(|[_, _, remaining, _, _]| remaining);
        if let Some([_, limit, remaining, _, reset_after]) = tightest.filter(|_| legacy) {
            set("x-ratelimit-limit", limit.to_string());
            set("x-ratelimit-remaining", remaining.to_string());
            set("x-ratelimit-reset", seconds(*reset_after).to_string());
        }
        headers
    }
}

/// One of the five commands.
pub async fn charge(
    redis: &mut ConnectionManager,
    command: &str,
    key: &str,
    (limit, window): (i64, i64),
    cost: i64,
    mode: Option<&str>,
) -> RedisResult<Reply> {
    let mut call = cmd(command);
    call.arg(key)
        .arg(limit)
        .arg(window)
        .arg("*")
        .arg("COST")
        .arg(cost)
        .arg(mode);
    call.query_async(redis).await
}
