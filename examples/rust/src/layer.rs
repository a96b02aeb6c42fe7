//! The tower layer.

use std::mem;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::extract::{ConnectInfo, Request};
use axum::http::{HeaderMap, StatusCode, header::RETRY_AFTER};
use axum::response::{IntoResponse, Response};
use redis::aio::ConnectionManager;
use tower::{Layer, Service};

use crate::limit::{self, Verdict};

/// Limits what is inside it.
#[derive(Clone)]
pub struct RateLimit {
    pub redis: ConnectionManager,
    pub fail_open: bool,
    pub legacy_headers: bool,
}

impl<S> Layer<S> for RateLimit {
    type Service = Limited<S>;

    fn layer(&self, inner: S) -> Limited<S> {
        let limit = self.clone();
        Limited { inner, limit }
    }
}

#[derive(Clone)]
pub struct Limited<S> {
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

pub fn caller(headers: &HeaderMap, ip: &str) -> String {
    let key = headers.get("x-api-key").and_then(|key| key.to_str().ok());
    key.unwrap_or(ip).to_owned()
}

pub fn deny(retry_after_ms: i64) -> Response {
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
pub fn unavailable() -> Response {
    StatusCode::SERVICE_UNAVAILABLE.into_response()
}
