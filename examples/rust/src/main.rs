//! A tower layer, shown with axum, on the redis crate's asynchronous client.

mod layer;
mod lease;
mod limit;

use std::env;
use std::error::Error;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{ConnectInfo, Query, State};
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use serde::Deserialize;
use serde_json::json;

use layer::{RateLimit, caller, deny, unavailable};
use lease::Lease;
use limit::TOKENS;

#[derive(Deserialize)]
struct Tokens {
    estimate: i64,
    /// Stands for what the model tells.
    used: i64,
}

/// Reserves what the answer may take, then settles what it took.
async fn chat(
    State(mut redis): State<ConnectionManager>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    headers: HeaderMap,
    Query(Tokens { estimate, used }): Query<Tokens>,
) -> Response {
    let key = format!(
        "{}:tokens",
        limit::tag(&caller(&headers, &peer.ip().to_string()))
    );
    match limit::charge(&mut redis, "RL.TOKEN", &key, TOKENS, estimate, None).await {
        Ok([0, _, _, retry_after, _]) => return deny(retry_after),
        Ok(_) => {}
        Err(_) => return unavailable(),
    }
    match settle(&mut redis, &key, estimate, used).await {
        Ok(remaining) => Json(json!({ "remaining": remaining })).into_response(),
        Err(_) => unavailable(),
    }
}

/// Corrects a reservation; what remains.
async fn settle(
    redis: &mut ConnectionManager,
    key: &str,
    estimate: i64,
    used: i64,
) -> redis::RedisResult<i64> {
    if used < estimate {
        let mut refund = redis::cmd("RL.REFUND");
        return refund
            .arg(key)
            .arg(estimate - used)
            .arg("*")
            .query_async(redis)
            .await;
    }
    // What was taken is taken: it may become a debt. A cost of 0 only looks.
    let [_, _, remaining, _, _] = limit::charge(
        redis,
        "RL.TOKEN",
        key,
        TOKENS,
        used - estimate,
        Some("FORCE"),
    )
    .await?;
    Ok(remaining)
}

async fn hot(State((mut redis, lease)): State<(ConnectionManager, Arc<Lease>)>) -> Response {
    match lease.take(&mut redis).await {
        Ok(None) => Json(json!({ "ok": true })).into_response(),
        Ok(Some(wait_ms)) => deny(wait_ms),
        Err(_) => unavailable(),
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let setting = |name: &str, or: &str| env::var(name).unwrap_or_else(|_| or.to_owned());
    let timeout = Duration::from_millis(setting("REDIS_TIMEOUT_MS", "100").parse()?);
    let config = ConnectionManagerConfig::new()
        .set_connection_timeout(Some(timeout))
        .set_response_timeout(Some(timeout))
        .set_number_of_retries(1)
        .set_max_delay(Duration::from_millis(500));
    let client = redis::Client::open(setting("REDIS_URL", "redis://127.0.0.1:6379"))?;
    let redis = ConnectionManager::new_lazy_with_config(client, config)?;
    let layer = RateLimit {
        redis: redis.clone(),
        fail_open: setting("FAIL", "open") == "open",
        legacy_headers: setting("LEGACY_HEADERS", "") == "1",
    };
    let app = Router::new()
        .route(
            "/api",
            get(async || Json(json!({ "ok": true }))).layer(layer),
        )
        .route(
            "/hot",
            get(hot).with_state((redis.clone(), Arc::new(Lease::default()))),
        )
        .route("/chat", post(chat).with_state(redis));
    let listener =
        tokio::net::TcpListener::bind(("127.0.0.1", setting("PORT", "8000").parse()?)).await?;
    axum::serve(
        listener,
        app.into_make_service_with_connect_info::<SocketAddr>(),
    )
    .await?;
    Ok(())
}
