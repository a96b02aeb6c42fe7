//! The table of the algorithms. A sixth one is a file beside this, and a row here.

use super::{
    Fixed, Gcra, Limiter, Policy, Refunded, Retry, SlidingCounter, SlidingLog, Token, View, narrow,
    next_after_us,
};

macro_rules! algorithms {
    ($($name:ident = $state:ty: $number:literal, $word:literal;)*) => {
        /// Which algorithm; the number is the one in stored states.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum Algorithm {
            $(#[doc = $word] $name = $number,)*
        }

        impl Algorithm {
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// Its name, as `RL.INSPECT` gives it; in capitals it is the command's after `RL.`.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => $word,)*
                }
            }

            #[must_use]
            pub const fn from_number(number: u8) -> Option<Self> {
                match number {
                    $($number => Some(Self::$name),)*
                    _ => None,
                }
            }

            /// Does `what` with this algorithm's own type.
            #[inline]
            pub fn run<F: ForAlgorithm>(self, what: F) -> F::Output {
                match self {
                    $(Self::$name => what.with::<$state>(),)*
                }
            }

            /// The state in `words` that `pack` made for this algorithm.
            #[must_use]
            pub fn unpack(self, words: &narrow::Words) -> State {
                match self {
                    $(Self::$name => <$state>::unpack(words).into(),)*
                }
            }
        }

        /// Any limiter's state.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum State {
            $($name($state),)*
        }

        /// Evaluates `$body` with `$own` bound to the algorithm's own state.
        macro_rules! each {
            ($any:expr, $own:ident => $body:expr) => {
                match $any { $(State::$name($own) => $body,)* }
            };
        }

        $(impl From<$state> for State {
            #[inline]
            fn from(own: $state) -> Self {
                Self::$name(own)
            }
        }

        impl Named for $state {
            const ALGORITHM: Algorithm = Algorithm::$name;

            #[inline]
            fn of(state: &mut State) -> Option<&mut Self> {
                match state {
                    State::$name(own) => Some(own),
                    _ => None,
                }
            }
        })*
    };
}

algorithms! {
    Fixed = Fixed: 0, "fixed";
    SlidingLog = SlidingLog: 1, "slidinglog";
    SlidingCounter = SlidingCounter: 2, "slidingcounter";
    Token = Token: 3, "token";
    Gcra = Gcra: 4, "gcra";
}

impl Algorithm {
    /// Whether its policies have a burst of their own.
    #[must_use]
    pub const fn has_burst(self) -> bool {
        match self {
            Self::Token | Self::Gcra => true,
            Self::Fixed | Self::SlidingLog | Self::SlidingCounter => false,
        }
    }
}

/// Where a state does not fit into 32 bytes, it takes 64.
const _: () = assert!(size_of::<State>() <= 64);

/// Something to be done with an algorithm's own type where only its name is known.
pub trait ForAlgorithm {
    type Output;
    fn with<L: Limiter>(self) -> Self::Output;
}

/// A row of the table.
pub trait Named: Sized + Into<State> {
    const ALGORITHM: Algorithm;
    /// This algorithm's own state, if `state` is one.
    fn of(state: &mut State) -> Option<&mut Self>;
}

/// A limiter as its own policy sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inspection {
    pub algorithm: Algorithm,
    pub policy: Policy,
    pub remaining: u64,
    /// For one unit.
    pub retry: Retry,
    pub reset_after_us: u64,
    pub next_after_us: u64,
    pub updated_us: u64,
}

impl State {
    #[must_use]
    pub fn algorithm(&self) -> Algorithm {
        fn of<L: Limiter>(_: &L) -> Algorithm {
            L::ALGORITHM
        }
        each!(self, own => of(own))
    }

    #[must_use]
    pub fn inspect(&self, now_us: u64) -> Inspection {
        fn inspect<L: Limiter>(own: &L, now_us: u64) -> Inspection {
            let policy = own.policy();
            let view = L::view(Some(own), policy, now_us);
            let remaining = policy.burst().saturating_sub(view.used());
            Inspection {
                algorithm: L::ALGORITHM,
                policy,
                remaining,
                retry: if remaining > 0 {
                    Retry::Now
                } else {
                    Retry::AfterUs(view.wait_us(policy.burst().saturating_sub(1)))
                },
                reset_after_us: view.reset_us(),
                next_after_us: next_after_us(&view, policy),
                updated_us: own.updated_us(),
            }
        }
        each!(self, own => inspect(own, now_us))
    }

    /// Gives back up to `units`, the newest first, under the policy last charged.
    pub fn refund(&mut self, units: u64, now_us: u64) -> Refunded {
        each!(self, own => own.refund(units, now_us))
    }

    /// The state in 32 bytes, if it fits.
    #[must_use]
    pub fn pack(&self) -> Option<narrow::Words> {
        each!(self, own => own.pack())
    }
}
