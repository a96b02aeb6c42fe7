//! A tower layer, shown with axum, on the redis crate's asynchronous client.

mod limit;

use std::env;
use std::error::Error;
use std::mem;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::extract::{ConnectInfo, Query, Request, State};
use axum::http::{HeaderMap, StatusCode, header::RETRY_AFTER};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use serde::Deserialize;
use serde_json::json;
use tower::{Layer, Service};

use limit::{Lease, TOKENS, Verdict};

/// Limits what is inside it.
#[derive(Clone)]
struct RateLimit {
    redis: ConnectionManager,
    fail_open: bool,
    legacy_headers: bool,
}

impl<S> Layer<S> for RateLimit {
    type Service = Limited<S>;

    fn layer(&self, inner: S) -> Limited<S> {
        let limit = self.clone();
        Limited { inner, limit }
    }
}

#[derive(Clone)]
struct Limited<S> {
    inner: S,
    limit: RateLimit,
}

impl<S> Service<Request> for Limited<S>
where
    S: Service<Request, Response = Response> + Clone + Send + 'static,
    S::Future: Send,
{
    type Response = Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request) -> Self::Future {
        // The one that was polled is ready; its clone may not be.
        let clone = self.inner.clone();
        let mut inner = mem::replace(&mut self.inner, clone);
        let mut limit = self.limit.clone();
        Box::pin(async move {
            let peer = request.extensions().get::<ConnectInfo<SocketAddr>>();
            let ip = peer.map_or_else(String::new, |ConnectInfo(peer)| peer.ip().to_string());
            let caller = caller(request.headers(), &ip);
            let Ok(verdict) = limit::check(&mut limit.redis, &caller, &ip).await else {
                // Away, too slow, or out of memory.
                return if limit.fail_open {
                    inner.call(request).await
                } else {
                    Ok(unavailable())
                };
            };
            let Verdict {
                allowed,
                retry_after,
                ..
            } = verdict;
            let mut response = if allowed {
                inner.call(request).await?
            } else {
                deny(retry_after)
            };
            response
                .headers_mut()
                .extend(verdict.headers(limit.legacy_headers));
            Ok(response)
        })
    }
}

fn caller(headers: &HeaderMap, ip: &str) -> String {
    let key = headers.get("x-api-key").and_then(|key| key.to_str().ok());
    key.unwrap_or(ip).to_owned()
}

fn deny(retry_after_ms: i64) -> Response {
    let status = StatusCode::TOO_MANY_REQUESTS;
    match retry_after_ms {
        // 0 means allowed, -1 never.
        1.. => (
            status,
            [(RETRY_AFTER, limit::seconds(retry_after_ms).to_string())],
        )
            .into_response(),
        _ => status.into_response(),
    }
}

/// Tokens cost money: where the layer is not asked, no Redis means no.
fn unavailable() -> Response {
    StatusCode::SERVICE_UNAVAILABLE.into_response()
}

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
    match limit::settle(&mut redis, &key, estimate, used).await {
        Ok(remaining) => Json(json!({ "remaining": remaining })).into_response(),
        Err(_) => unavailable(),
    }
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
