//! Which time a call counts as.

use std::sync::atomic::Ordering;

use super::api::{self, Argv, Context};
use super::config;
use super::failure::Failure;
use crate::args::{Millis, Now};

/// A call's time, and whether the caller gave it.
#[derive(Clone, Copy)]
pub struct Time {
    pub us: u64,
    given: bool,
}

impl Time {
    /// Fails if the caller's clock is further from the server's than configured. A replayed call
    /// was let in already.
    #[inline(always)]
    pub fn of(context: Context, now: Now) -> Result<Self, Failure> {
        match now {
            Now::Server => Ok(Self {
                us: api::now_us(),
                given: false,
            }),
            Now::Us(us) => {
                let max_skew_ms = config::MAX_SKEW_MS.load(Ordering::Relaxed);
                if max_skew_ms > 0 && !context.is_replay() {
                    let server_us = api::now_us();
                    let max_skew_us = u64::try_from(max_skew_ms).unwrap_or(0).saturating_mul(1000);
                    if us.abs_diff(server_us) > max_skew_us {
                        return Err(Failure::Skew {
                            now_us: us,
                            server_us,
                            max_skew_ms,
                        });
                    }
                }
                Ok(Self { us, given: true })
            }
        }
    }

    /// Sends the call on, with the time it counted as at `index` of its arguments.
    #[inline(always)]
    pub fn replicate(self, context: Context, argv: Argv<'_>, index: usize) {
        if self.given {
            context.replicate_verbatim();
        } else {
            context.replicate_with(argv, index, &Millis(self.us).text());
        }
    }
}
