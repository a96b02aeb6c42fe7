-- The bucket under TOKEN and GCRA ---------------------------------------------
-- The two are one algorithm told twice, so they share their state: x + y / window
-- units are spent at `updated` (y < window), and `limit` / window of a unit drains
-- in each µs. Under another policy they drain on at the old rate until a call is
-- charged, which takes them over as units.

-- µs until q + r / window units have drained at limit / window per µs.
local function drain_us(q, r, limit, window)
  local whole, part = muldiv(q, window, limit)
  local rest = r % limit
  whole = whole + (r - rest) / limit
  if rest > limit - part then
    return whole + 2
  end
  return whole + (rest + part > 0 and 1 or 0)
end

local function open_bucket(key, algorithm, call)
  local state, err = load(key, algorithm, call)
  if not state then
    return nil, err
  end
  local t = math.max(call.now, state.updated)
  local limit, window = state.limit, state.window

  -- What is still spent at t.
  local q, r = state.x, state.y
  local drained_q, drained_r = muldiv(limit, t - state.updated, window)
  if drained_q > q or (drained_q == q and drained_r >= r) then
    q, r = 0, 0
  else
    q, r = q - drained_q, r - drained_r
    if r < 0 then
      q, r = q - 1, r + window
    end
  end

  local view = { t = t, hi = 0, lo = q + (r > 0 and 1 or 0), reset = drain_us(q, r, limit, window) }

  function view.wait(room)
    return drain_us(q - room, r, limit, window)
  end

  function view.charge(n)
    local spent, fraction = q + n, r
    if window ~= call.window then
      local part, rest = muldiv(r, call.window, window)
      fraction = part + (rest > 0 and 1 or 0)
      if fraction == call.window then
        spent, fraction = spent + 1, 0
      end
    end
    local debt = spent - call.capacity
    local endless = debt >= 0 and not drains_in_1000_years(debt, fraction, call.limit, call.window)
    return drain_us(spent, fraction, call.limit, call.window), function(ttl)
      save(key, algorithm, call, t, spent, fraction, ttl)
    end, endless
  end

  return view
end
