//! `RL.TOP` and `RL.HELP`.

use std::ffi::c_int;

use super::api::{Argv, Context, OK};
use super::denials;
use super::failure::Failure;
use crate::args::{self, Top};

pub fn top_command(context: Context, argv: Argv<'_>) -> c_int {
    match args::parse_top(&argv.from(1)) {
        Err(error) => Failure::from(error).reply(context),
        Ok(Top::Reset) => {
            denials::top().reset();
            context.reply_ok()
        }
        Ok(Top::Show { most }) => {
            let mut top = denials::top();
            let rows = top.most_denied(context.database(), most);
            context.reply_map(rows.len());
            for (key, count) in rows {
                context.reply_bulk(key);
                context.reply_integer(super::check::count(count));
            }
            OK
        }
    }
}

pub fn help_command(context: Context, argv: Argv<'_>) -> c_int {
    if argv.all().len() != 1 {
        return context.reply_wrong_arity();
    }
    context.reply_array(HELP.len());
    for line in HELP {
        context.reply_bulk(line.as_bytes());
    }
    OK
}

static HELP: &[&str] = &[
    "RL.FIXED key limit window now [COST n] [PEEK | FORCE | PARTIAL]",
    "    At most limit units in each aligned window.",
    "RL.SLIDINGLOG key limit window now [COST n] [PEEK | FORCE | PARTIAL]",
    "    At most limit units in any window, exactly; memory grows with the limit.",
    "RL.SLIDINGCOUNTER key limit window now [COST n] [PEEK | FORCE | PARTIAL]",
    "    Nearly so, in constant memory.",
    "RL.TOKEN key limit window now [BURST b] [COST n] [PEEK | FORCE | PARTIAL]",
    "RL.GCRA key limit window now [BURST b] [COST n] [PEEK | FORCE | PARTIAL]",
    "    limit units per window, evenly, and up to burst at once.",
    "        window and now are milliseconds; now may be * for the server's clock.",
    "        Reply: allowed, limit, remaining, retry_after ms (-1: never), reset_after ms.",
    "RL.MULTI numkeys key [key ...] now <ALGORITHM limit window [BURST b] [COST n]> ... [PEEK | FORCE]",
    "    Charges all limiters or none. Reply: allowed, retry_after, a reply for each.",
    "RL.INSPECT key now",
    "    What a limiter knows of itself.",
    "RL.REFUND key units now",
    "    Gives units back. Reply: remaining.",
    "RL.TOP [COUNT n] | RESET",
    "    The keys denied most lately.",
    "RL.THROTTLE key max_burst count period [quantity [now]]",
    "    As CL.THROTTLE of redis-cell, in seconds.",
    "RL.HELP",
    "    These lines.",
];
