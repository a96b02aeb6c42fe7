-- FIXED: at most `limit` units in each window; windows are aligned to the clock's zero.
--
-- x * 2^53 + y are the units used in the window that `updated` lies in. Under
-- another window length they belong to the new window that one began in.
local fixed = { name = 'fixed', exact = true }

function fixed.open(key, algorithm, call)
  local state, err = load(key, algorithm, call)
  if not state then
    return nil, err
  end
  local window = call.window
  local t = math.max(call.now, state.updated)
  local start = state.updated - state.updated % state.window
  local hi, lo = state.x, state.y
  if start - start % window ~= t - t % window then
    hi, lo = 0, 0 -- that window is over
  end
  local left = window - t % window
  local view = { t = t, hi = hi, lo = lo, reset = hi + lo > 0 and left or 0 }

  function view.wait()
    return left
  end

  function view.charge(n)
    return left, function(ttl)
      local x, y = plus(hi, lo, n)
      save(key, algorithm, call, t, x, y, ttl)
    end
  end

  return view
end
