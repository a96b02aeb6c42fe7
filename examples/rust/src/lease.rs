//! A hot key, leased.

use std::time::{Duration, Instant};

use redis::RedisResult;
use redis::aio::ConnectionManager;
use tokio::sync::Mutex;

use crate::limit::charge;

const HOT: (i64, i64) = (1_000, 3_600_000);
const LEASE: i64 = 50;

/// Takes units of a hot key in bulk and spends them here: one call to Redis for [`LEASE`] requests.
///
/// Never more than the policy admits is charged. What is leased may be spent later, or be lost when this ends.
#[derive(Default)]
pub struct Lease(Mutex<(i64, Option<Instant>)>);

impl Lease {
    /// Nothing, or the ms to wait.
    pub async fn take(&self, redis: &mut ConnectionManager) -> RedisResult<Option<i64>> {
        let (left, retry_at) = &mut *self.0.lock().await;
        if *left == 0 && retry_at.is_none_or(|at| at <= Instant::now()) {
            let reply = charge(
                redis,
                "RL.SLIDINGLOG",
                "limit:hot",
                HOT,
                LEASE,
                Some("PARTIAL"),
            )
            .await?;
            let [granted, _, _, retry_after, _] = reply;
            *left = granted;
            *retry_at = Some(Instant::now() + Duration::from_millis(retry_after.unsigned_abs()));
        }
        if *left == 0 {
            let wait = retry_at.map_or(0, |at| (at - Instant::now()).as_millis());
            return Ok(Some(i64::try_from(wait).unwrap_or(i64::MAX).max(1)));
        }
        *left -= 1;
        Ok(None)
    }
}
