-- TOKEN: a bucket of `burst` tokens, refilled continuously at `limit` per window.
--
-- The tokens in it are burst - spent.
local token = { name = 'token', has_burst = true, open = open_bucket }
