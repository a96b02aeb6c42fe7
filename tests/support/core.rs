//! A key's life in the pure core, without a server: what the commands do, in a few lines. After every change the
//! state goes through its 32-byte form and its encoding, which must give it back.

use redis_rl::codec;
use redis_rl::limit::{
    self, Algorithm, Call, DebtTooLarge, Fixed, Gcra, Limiter, Policy, Refunded, Retry,
    SlidingCounter, SlidingLog, State, Token, decide,
};

#[derive(Clone, Debug, Default)]
pub struct Key {
    pub state: Option<State>,
    /// Leave the forms alone: a log of a million entries takes its time to encode.
    pub unchecked: bool,
}

impl Key {
    pub fn call(&mut self, algorithm: Algorithm, call: &Call) -> Result<[i64; 5], DebtTooLarge> {
        match algorithm {
            Algorithm::Fixed => self.call_as::<Fixed>(call),
            Algorithm::SlidingLog => self.call_as::<SlidingLog>(call),
            Algorithm::SlidingCounter => self.call_as::<SlidingCounter>(call),
            Algorithm::Token => self.call_as::<Token>(call),
            Algorithm::Gcra => self.call_as::<Gcra>(call),
        }
    }

    fn call_as<L: Limiter>(&mut self, call: &Call) -> Result<[i64; 5], DebtTooLarge> {
        let own = self
            .state
            .as_mut()
            .map(|state| L::of(state).expect("one algorithm a key"));
        let decision = decide(&L::view(own.as_deref(), call.policy, call.now_us), call)?;
        if let Some(charge) = decision.charge(call) {
            match own {
                Some(own) => own.charge(charge),
                None => self.state = Some(L::fresh(charge).into()),
            }
            self.check_forms();
        }
        let verdict = decision.verdict;
        let ms = |us: u64| i64::try_from(us.div_ceil(1000)).unwrap();
        let units = |units: u64| i64::try_from(units).unwrap();
        Ok([
            units(verdict.allowed),
            units(verdict.limit),
            units(verdict.remaining),
            match verdict.retry {
                Retry::Now => 0,
                Retry::AfterUs(us) => ms(us),
                Retry::Never => -1,
            },
            ms(verdict.reset_after_us),
        ])
    }

    /// `remaining` after it; `None` if there is no key.
    pub fn refund(&mut self, units: u64, now_us: u64) -> Option<u64> {
        let state = self.state.as_mut()?;
        let refunded = state.refund(units, now_us);
        let inspection = state.inspect(now_us);
        if refunded == Refunded::Emptied {
            self.state = None;
            return Some(inspection.policy.burst());
        }
        self.check_forms();
        Some(inspection.remaining)
    }

    fn check_forms(&self) {
        if self.unchecked {
            return;
        }
        let state = self.state.as_ref().expect("just changed");
        let small = |policy: Policy| {
            policy.limit() >> 32 == 0 && policy.burst() >> 32 == 0 && policy.window_us() >> 48 == 0
        };
        match state.pack() {
            Some(words) => assert_eq!(&state.algorithm().unpack(&words), state),
            None => assert!(
                state.algorithm() == Algorithm::SlidingLog || !small(state.inspect(0).policy),
                "32 bytes should do for {state:?}"
            ),
        }
        assert_eq!(
            codec::decode(codec::VERSION, &codec::encode(state)).as_ref(),
            Ok(state)
        );
    }
}

pub fn policy(limit: u64, window_us: u64, burst: u64) -> Policy {
    limit::Policy::new(limit, window_us, burst).expect("a possible policy")
}
