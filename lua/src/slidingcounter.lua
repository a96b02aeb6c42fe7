-- SLIDINGCOUNTER: units of this window plus a share of the last one's, by its overlap.
--
-- x units were charged in the window that `updated` lies in, y in the one
-- before. Under another window length each moves to the window its own began in.
local slidingcounter = { name = 'slidingcounter' }

function slidingcounter.open(key, algorithm, call)
  local state, err = load(key, algorithm, call)
  if not state then
    return nil, err
  end
  local window = call.window
  local t = math.max(call.now, state.updated)
  local current, previous = state.x, state.y

  -- Where the counts lie among windows of the call's length.
  local start = state.updated - state.updated % state.window
  local before = start - state.window
  before = before - before % window
  start = start - start % window
  if before == start then
    current, previous = current + previous, 0
  elseif start - before ~= window then
    previous = 0
  end

  -- And where they lie now.
  local elapsed = t % window
  local passed = t - elapsed - start
  if passed == window then
    current, previous = 0, current
  elseif passed > 0 then
    current, previous = 0, 0
  end

  local left = window - elapsed
  local reset = 0
  if current > 0 then
    reset = left + window
  elseif previous > 0 then
    reset = left
  end
  local view = {
    t = t,
    hi = 0,
    lo = muldiv(previous, left, window) + current,
    counted = math.max(current, previous), -- counts that were joined may be too large
    reset = reset,
  }

  -- The most µs a window may still overlap so that at most `room` of its `n`
  -- units count: the largest y with floor(n * y / window) <= room.
  local function overlap(n, room)
    local q, r = muldiv(room + 1, window, n)
    return r > 0 and q or q - 1
  end

  function view.wait(room)
    if current <= room then -- in this window, or as the next one begins
      return left - overlap(previous, room - current)
    end
    return left + window - overlap(current, room) -- in the next, or at its end
  end

  function view.charge(n)
    return left + window, function(ttl)
      save(key, algorithm, call, t, current + n, previous, ttl)
    end
  end

  return view
end
